"""Tensors as the Open Inference Protocol carries them, read into flat NumPy arrays.

Raw bytes become views of the received buffer; JSON and typed protobuf contents become new arrays. Here only what
a tensor says about itself is checked (datatype, shape, size); `query_decoder` checks it against the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hebe.serving.errors import InvalidInput

DATATYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
        "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
        "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    }.items()
}  # fmt: skip
"""NumPy's type for each of the protocol's fixed-size datatypes."""

MAX_RANK = 8
"""Dimensions a tensor may have; a model never takes more than two."""


class WireTensor(NamedTuple):
    """One input of a request: `values` is flat, native byte order, row-major, perhaps unaligned."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: npt.NDArray[Any]


def _count(name: str, datatype: str, shape: Sequence[int]) -> tuple[np.dtype[Any], int]:
    """The NumPy type and the number of elements that `datatype` and `shape` promise."""
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise InvalidInput(f"input {name!r}: datatype {datatype!r} is not supported; use INT64, INT32 or FP32")
    if len(shape) > MAX_RANK:
        raise InvalidInput(f"input {name!r}: shape has {len(shape)} dimensions; at most {MAX_RANK} are allowed")
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise InvalidInput(f"input {name!r}: shape {list(shape)!r:.100}: sizes must be whole numbers, not negative")
        count *= size
    return dtype, count


def tensor_from_buffer(
    name: str, datatype: str, shape: Sequence[int], buffer: bytes | bytearray | memoryview
) -> WireTensor:
    """A tensor whose values are a view of `buffer` (little-endian, row-major), wherever it lies.

    Raises `InvalidInput` if the size of `buffer` is not what datatype and shape make.
    """
    dtype, count = _count(name, datatype, shape)
    size_bytes = count * dtype.itemsize
    if len(buffer) != size_bytes:
        raise InvalidInput(
            f"input {name!r}: has {len(buffer)} bytes of data; {datatype} of shape {list(shape)} needs {size_bytes}"
        )
    values: npt.NDArray[Any] = np.frombuffer(buffer, dtype) if count else np.empty(0, dtype)
    return WireTensor(name, datatype, tuple(shape), values)


def tensor_from_values(name: str, datatype: str, shape: Sequence[int], data: Any) -> WireTensor:
    """A tensor from JSON `data` (a list, flat or nested) or a typed protobuf field (a flat sequence).

    Whole numbers are required for integer datatypes, numbers for floating ones, booleans for BOOL. Raises
    `InvalidInput` naming the input if they are not, do not fit the datatype, or their count is not the shape's.
    """
    dtype, count = _count(name, datatype, shape)
    try:
        raw = np.array(data)
    except (ValueError, OverflowError, TypeError):
        raise InvalidInput(
            f"input {name!r}: data is ragged or nested too deeply; it must fit shape {list(shape)}"
        ) from None
    if raw.ndim == 0 or (raw.ndim > 1 and raw.shape != tuple(shape)) or raw.size != count:
        raise InvalidInput(
            f"input {name!r}: data has {raw.size} element(s) of shape {list(raw.shape)}; "
            f"shape {list(shape)} needs {count}, flat or nested alike"
        )
    if raw.size == 0:
        return WireTensor(name, datatype, tuple(shape), np.empty(0, dtype))
    if raw.dtype.kind not in _ACCEPTED_KINDS[dtype.kind]:
        raise InvalidInput(f"input {name!r}: data must be {_ACCEPTED_WORDS[dtype.kind]} for {datatype}")
    raw = raw.reshape(-1)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        least, most = int(raw.min()), int(raw.max())
        if least < limits.min or most > limits.max:
            raise InvalidInput(
                f"input {name!r}: value {least if least < limits.min else most} does not fit {datatype} "
                f"({limits.min}..{limits.max})"
            )
    with np.errstate(over="ignore"):
        return WireTensor(name, datatype, tuple(shape), raw.astype(dtype))


_ACCEPTED_KINDS = {"i": "iu", "u": "iu", "f": "iuf", "b": "b"}
_ACCEPTED_WORDS = {"i": "whole numbers", "u": "whole numbers", "f": "numbers", "b": "booleans"}
