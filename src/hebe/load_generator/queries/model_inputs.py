"""What a model wants to be sent, from what its server says about it.

The server's metadata lists inputs (name, datatype, shape). Its configuration, where it has one, may tell `rows.INPUT`
(keys of that input lie in 0..rows-1, of which a target's `max_key` may leave less) and the model's SLA (`sla_ms`,
`sla_percentile`) among its parameters, and as `max_batch_size` the largest query that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hebe.load_generator.error import LoadError
from hebe.load_generator.target import Target
from hebe.spec import SlaTarget, SpecError

_KEY_TYPES = {
    "INT64": "<i8", "INT32": "<i4", "INT16": "<i2", "INT8": "i1",
    "UINT64": "<u8", "UINT32": "<u4", "UINT16": "<u2", "UINT8": "u1",
}  # fmt: skip
_VALUE_TYPES = {"FP64": "<f8", "FP32": "<f4", "FP16": "<f2"}


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input tensor `[items, *columns]`. `rows` is None for values (FP...), else keys lie in [0, rows)."""

    name: str
    datatype: str
    columns: tuple[int, ...]
    rows: int | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of it, little-endian."""
        return np.dtype(_KEY_TYPES.get(self.datatype) or _VALUE_TYPES[self.datatype])

    @property
    def item_bytes(self) -> int:
        """Bytes per item."""
        return int(np.prod(self.columns, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """All inputs of a model; its SLA and the items that a query may have at most, if the server tells them."""

    inputs: tuple[ModelInput, ...]
    sla: SlaTarget | None = None
    max_items: int | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of raw tensors per item."""
        return sum(tensor.item_bytes for tensor in self.inputs)


def model_inputs(
    target: Target, metadata: Sequence[Mapping[str, Any]], parameters: Mapping[str, str], max_batch_size: object = None
) -> ModelInputs:
    """What `metadata` (name, datatype, shape of each input), `parameters` and `max_batch_size` describe.

    A `max_batch_size` that is no positive number tells nothing. Raises `LoadError`.
    """
    if not metadata:
        raise LoadError(f"model {target.model}: the server lists no inputs")
    told = isinstance(max_batch_size, int) and not isinstance(max_batch_size, bool) and max_batch_size > 0
    inputs = tuple(_input(target, described, parameters) for described in metadata)
    return ModelInputs(inputs, _sla(parameters), max_batch_size if told else None)  # type: ignore[arg-type]


def _input(target: Target, described: Mapping[str, Any], parameters: Mapping[str, str]) -> ModelInput:
    name, datatype, shape = described.get("name"), described.get("datatype"), described.get("shape")
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
        raise LoadError(f"model {target.model}: metadata of an input lacks name, datatype or shape: {described}")
    where = f"model {target.model}: input {name}"
    columns = tuple(int(size) for size in shape[1:])
    if not shape or any(size < 1 for size in columns):
        raise LoadError(f"{where} has shape {shape}: only inputs [items, fixed sizes...] can be drawn")
    if datatype in _VALUE_TYPES:
        return ModelInput(name, datatype, columns, None)
    if datatype not in _KEY_TYPES:
        raise LoadError(f"{where} has datatype {datatype}: only whole numbers (keys) and FP16, FP32, FP64 can be drawn")
    told = parameters.get(f"rows.{name}")
    if told is not None:
        if not (told.isascii() and told.isdigit() and int(told) > 0):
            raise LoadError(f"{where}: the server's parameter rows.{name} is {told!r}: must be a positive number")
        rows = int(told)
        if target.max_key is not None:
            rows = min(rows, target.max_key + 1)
    elif target.max_key is not None:
        rows = target.max_key + 1
    else:
        raise LoadError(f"{where}: the server does not tell how many rows its keys may name; give --max-key")
    largest = np.iinfo(_KEY_TYPES[datatype]).max
    return ModelInput(name, datatype, columns, min(rows, int(largest) + 1))


def _sla(parameters: Mapping[str, str]) -> SlaTarget | None:
    if "sla_ms" not in parameters:
        return None
    try:
        return SlaTarget(float(parameters["sla_ms"]), float(parameters.get("sla_percentile", 95.0)))
    except (ValueError, SpecError):
        return None
