"""A torch layer over embedding tables that are too large for the process, or shared with others: HPS' `LookupLayer`.

layer = hebe.LookupLayer("ps.json", "wdl", "table1", 16)
vectors = layer(keys)                                      # int64 [...] -> float32 [..., 16]

The lookup is the op `torch.ops.hebe.lookup`, which reads the tables each time that it runs. So a graph that
`torch.jit.trace`, `torch.export` or `torch.compile` makes of the layer has the op in it, and no rows; it runs wherever
`hebe.runtime.lookup_layer` was imported.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from pathlib import Path
from typing import Any

import torch

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hps.hps import HPS
from hebe.embeddings.store import StoreError

_opened: weakref.WeakValueDictionary[str, HPS] = weakref.WeakValueDictionary()
"""By source: `file:TIME OF CHANGE:PATH` of a configuration file, whose layers share the tables as HPS' do, or
`object:UUID`."""
_read_by_graphs: dict[str, HPS] = {}
"""By source. A graph does not hold what it reads: that stays open until the process ends."""
_opening = threading.Lock()


class LookupLayer(torch.nn.Module):
    """Rows by key, as `torch.nn.Embedding` gives them, but of any int64 and without a gradient.

    `config` is an `HPS`, or what one is made of; layers that name the same file share one, which is closed when the
    last of them goes. `table` is a name or HPS' index, `dim` its embedding dim. `timeout_s` and `wait` as
    `HPS.lookup`. Rows are float32, or what `half`, `bfloat16` or `to` make the module.

    It can be traced, scripted, exported and compiled. A graph that is saved names the configuration file, which is read
    where it is loaded; one of a layer over an `HPS` or a `HierarchyConfig` runs in this process alone. A copy shares
    the tables; one that was pickled opens them from the configuration. Raises ValueError for another dim, KeyError for
    a model or table that there is not, and as `HPS`.
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
        self.source, self.hps = _open(config)
        self.model, self.table, self.dim = model, self.hps.table(model, table).name, dim
        self.timeout_s, self.wait = timeout_s, wait
        self.register_buffer("like_rows", torch.empty(0), persistent=False)  # follows the dtype of the module
        found = self.hps.table(model, table).dim
        if found != dim:
            raise ValueError(f"table {self.table} of model {model} has embedding dim {found}, not {dim}")

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Rows `[*keys.shape, dim]` for keys int32 or int64, on their device. Raises as `HPS.lookup`."""
        rows = torch.ops.hebe.lookup(keys, self.source, self.model, self.table, self.dim, self.timeout_s, self.wait)
        cast: torch.Tensor = rows.to(self.like_rows.dtype)
        return cast

    def extra_repr(self) -> str:
        """What `print` shows of the layer."""
        return f"model={self.model}, table={self.table}, dim={self.dim}"

    def __getstate__(self) -> dict[str, Any]:
        """All but what is opened again from a file."""
        state = self.__dict__.copy()
        state["hps"] = _path_of(self.source) or self.hps
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the tables again. Raises as `HPS`."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.source, self.hps = _open(state["hps"])

    def __deepcopy__(self, memo: dict[int, Any]) -> LookupLayer:
        """A layer over the same tables, which are not copied."""
        copy = LookupLayer(self.hps, self.model, self.table, self.dim, timeout_s=self.timeout_s, wait=self.wait)
        copy.to(self.get_buffer("like_rows")).train(self.training)
        memo[id(self)] = copy
        return copy


def _lookup(
    keys: torch.Tensor, source: str, model: str, table: str, _dim: int, timeout_s: float, wait: bool
) -> torch.Tensor:
    rows: torch.Tensor = _tables_of(source).lookup(keys.detach().cpu(), model, table, timeout_s=timeout_s, wait=wait)
    return rows.to(keys.device)


def _like_rows(keys: torch.Tensor, _source: str, _model: str, _table: str, dim: int, *_: object) -> torch.Tensor:
    """What a graph is made with in place of rows."""
    return keys.new_empty((*keys.shape, dim), dtype=torch.float32)


_library = torch.library.Library("hebe", "FRAGMENT")  # type: ignore[no-untyped-call]
"""`torch.library.custom_op` would take four times as long a call."""
_SCHEMA = "(Tensor keys, str source, str model, str table, int dim, float timeout_s, bool wait) -> Tensor"
_library.define(f"lookup{_SCHEMA}")  # type: ignore[no-untyped-call]
_library.impl("lookup", _lookup, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("hebe::lookup", _like_rows, lib=_library)


def _open(config: HPS | HierarchyConfig | str | os.PathLike[str]) -> tuple[str, HPS]:
    """The tables of `config`, open already or now, and the source that names them."""
    if isinstance(config, HPS | HierarchyConfig):
        hps = config if isinstance(config, HPS) else HPS(config)
        source = next((source for source, other in _opened.items() if other is hps), f"object:{uuid.uuid4()}")
        _opened[source] = hps
        return source, hps
    path = Path(config).resolve()
    with _opening:
        source = f"file:{path.stat().st_mtime_ns if path.exists() else 0}:{path}"
        opened = _opened.get(source)
        if opened is None or opened.closed:
            _opened[source] = opened = HPS(path)
        return source, opened


def _path_of(source: str) -> str:
    """The configuration file of a source, "" if it has none."""
    kind, _, rest = source.partition(":")
    return rest.partition(":")[2] if kind == "file" else ""


def _tables_of(source: str) -> HPS:
    """The tables that a graph reads."""
    hps = _opened.get(source)
    if hps is not None:
        return hps
    path = _path_of(source)
    if not path:
        raise StoreError(
            "this graph was made of a LookupLayer over an HPS or a HierarchyConfig that is closed, or was open in "
            "another process: make the layer of a configuration file"
        )
    if source not in _read_by_graphs:
        _read_by_graphs[source] = _open(path)[1]
    return _read_by_graphs[source]


def _renew_lock() -> None:
    """In a forked process: a thread that it lacks may have held the lock."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
