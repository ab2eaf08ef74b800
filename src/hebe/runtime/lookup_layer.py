"""A torch layer over embedding tables that are too large for the process, or shared with others: HPS' `LookupLayer`.

layer = hebe.LookupLayer("ps.json", "wdl", "table1", 16)
vectors = layer(keys)                                      # int64 [...] -> float32 [..., 16]
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any

import torch

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hps.hps import HPS

_opened: weakref.WeakValueDictionary[tuple[str, int], HPS] = weakref.WeakValueDictionary()
"""By configuration file and when that was changed: the layers of one model share its tables, as HPS' do."""
_opening = threading.Lock()


class LookupLayer(torch.nn.Module):
    """Rows by key, as `torch.nn.Embedding` gives them, but of any int64 and without a gradient.

    `config` is an `HPS`, or what one is made of; layers that name the same file share one, which is closed when the
    last of them goes. `table` is a name or HPS' index, `dim` its embedding dim. `timeout_s` and `wait` as
    `HPS.lookup`. Raises ValueError for another dim, KeyError for a model or table that there is not, and as `HPS`.
    """

    def __init__(
        self,
        config: HPS | HierarchyConfig | str | os.PathLike[str],
        model: str,
        table: str | int,
        dim: int,
        *,
        timeout_s: float = float("inf"),
        wait: bool = False,
    ) -> None:
        super().__init__()
        self.hps = config if isinstance(config, HPS) else _shared(config)
        self.model, self.table, self.dim = model, self.hps.table(model, table).name, dim
        self.timeout_s, self.wait = timeout_s, wait
        found = self.hps.table(model, table).dim
        if found != dim:
            raise ValueError(f"table {self.table} of model {model} has embedding dim {found}, not {dim}")

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Float32 `[*keys.shape, dim]` for keys int32 or int64, on their device. Raises as `HPS.lookup`."""
        host = keys.detach().cpu()
        rows: torch.Tensor = self.hps.lookup(host, self.model, self.table, timeout_s=self.timeout_s, wait=self.wait)
        return rows.to(keys.device)

    def extra_repr(self) -> str:
        """What `print` tells of the layer."""
        return f"model={self.model}, table={self.table}, dim={self.dim}"

    def __deepcopy__(self, memo: dict[int, Any]) -> LookupLayer:
        """A layer over the same tables, which are not copied."""
        copy = LookupLayer(self.hps, self.model, self.table, self.dim, timeout_s=self.timeout_s, wait=self.wait)
        copy.train(self.training)
        memo[id(self)] = copy
        return copy


def _shared(config: HierarchyConfig | str | os.PathLike[str]) -> HPS:
    """The `HPS` of a file that is open already, or a new one."""
    if isinstance(config, HierarchyConfig):
        return HPS(config)
    path = Path(config).resolve()
    with _opening:
        key = (str(path), path.stat().st_mtime_ns if path.exists() else 0)
        hps = _opened.get(key)
        if hps is None or hps.closed:
            _opened[key] = hps = HPS(path)
        return hps
