"""Tensors as the Open Inference Protocol carries them, read into flat NumPy arrays.

Raw bytes become views of the received buffer; JSON and typed protobuf contents become new arrays. Here only what
a tensor says about itself is checked (datatype, shape, size); `query_decoder` checks it against the model.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hebe.serving.requests.errors import InvalidInput, quoted

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

MAX_COUNT = 2**63 - 1
"""Elements that a shape may promise, and the largest of its sizes: what the protocol's int64 can say."""


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
        raise InvalidInput(
            f"input {name!r:.100}: datatype {datatype!r:.100} is not supported; use INT64, INT32 or FP32"
        )
    if len(shape) > MAX_RANK:
        raise InvalidInput(f"input {name!r:.100}: shape has {len(shape)} dimensions; at most {MAX_RANK} are allowed")
    count = 1
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_COUNT:
            raise InvalidInput(
                f"input {name!r:.100}: shape [{', '.join(map(quoted, shape))}]: sizes must be whole numbers, not "
                f"negative, of at most {MAX_COUNT}"
            )
        count *= size
    if count > MAX_COUNT:
        raise InvalidInput(f"input {name!r:.100}: shape {list(shape)} makes {count} elements; at most {MAX_COUNT}")
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
            f"input {name!r:.100}: has {len(buffer)} bytes of data; {datatype} of shape {list(shape)} needs "
            f"{size_bytes}"
        )
    values: npt.NDArray[Any] = np.frombuffer(buffer, dtype) if count else np.empty(0, dtype)
    return WireTensor(name, datatype, tuple(shape), values)


def tensor_from_values(name: str, datatype: str, shape: Sequence[int], data: Any, most: int = MAX_COUNT) -> WireTensor:
    """A tensor from JSON `data` (a list, flat or nested as `shape` is) of at most `most` elements.

    Whole numbers are required for integer datatypes, numbers for floating ones, booleans for BOOL. Raises
    `InvalidInput` naming the input if they are not, do not fit the datatype, or their count is not the shape's.
    """
    dtype, count = _count(name, datatype, shape)
    _check_count(name, shape, count, most)
    values = _flat(name, shape, data)
    if len(values) != count:
        raise _wrong_count(name, shape, len(values), count)
    if not count:
        return WireTensor(name, datatype, tuple(shape), np.empty(0, dtype))
    code = _ARRAY_CODES.get(datatype)
    try:
        # `array` takes whole numbers as such only, and no text, of which NumPy would make all elements texts of the
        # longest one's length; but a boolean is a number to it.
        if code is None or bool in set(map(type, values)):
            _check_types(name, datatype, dtype, values)
            flat = np.fromiter(values, dtype, count)
        else:
            flat = np.frombuffer(array(code, values), DATATYPES[_CARRIED_AS.get(datatype, datatype)])
            if flat.dtype != dtype:
                with np.errstate(over="ignore"):  # what becomes infinite is looked for below
                    flat = flat.astype(dtype)
            if dtype.kind == "f" and not np.isfinite(flat).all() and all(map(math.isfinite, values)):
                raise OverflowError
    except (TypeError, OverflowError):
        _check_types(name, datatype, dtype, values)
        raise _does_not_fit(name, datatype, dtype, values) from None
    return WireTensor(name, datatype, tuple(shape), flat)


def tensor_from_field(
    name: str, datatype: str, shape: Sequence[int], field: Sequence[Any], most: int = MAX_COUNT
) -> WireTensor:
    """As `tensor_from_values`, from a typed protobuf field, whose elements are all of the kind of `datatype`. Raises
    `InvalidInput` as that does.
    """
    dtype, count = _count(name, datatype, shape)
    _check_count(name, shape, count, most)
    if len(field) != count:
        raise _wrong_count(name, shape, len(field), count)
    try:
        flat = np.fromiter(field, dtype, count)
    except OverflowError:
        raise _does_not_fit(name, datatype, dtype, field) from None
    return WireTensor(name, datatype, tuple(shape), flat)


def _check_count(name: str, shape: Sequence[int], count: int, most: int) -> None:
    if count > most:
        raise InvalidInput(
            f"input {name!r:.100}: shape {list(shape)} makes {count} elements; at most {most} are taken, as many as "
            "the widest input of the largest query has"
        )


def _wrong_count(name: str, shape: Sequence[int], given: int, wanted: int) -> InvalidInput:
    return InvalidInput(
        f"input {name!r:.100}: data has {given} element(s); shape {list(shape)} needs {wanted}, flat or nested alike"
    )


def _flat(name: str, shape: Sequence[int], data: Any) -> Sequence[Any]:
    """The elements of `data`; what nests otherwise than `shape` is refused."""
    if type(data) is not list:
        raise InvalidInput(
            f"input {name!r:.100}: data is {quoted(data)}; it must be a list, flat or nested as the shape is"
        )
    if not data or type(data[0]) is not list:
        return data
    nested: list[Any] = [data]
    for size in shape:
        if not _LIST.issuperset(map(type, nested)) or not {size}.issuperset(map(len, nested)):
            raise InvalidInput(
                f"input {name!r:.100}: data is ragged, or nested otherwise than its shape; it must be flat or fit "
                f"shape {list(shape)}"
            )
        nested = list(chain.from_iterable(nested))
    return nested


def _check_types(name: str, datatype: str, dtype: np.dtype[Any], values: Sequence[Any]) -> None:
    if not _ACCEPTED_TYPES[dtype.kind].issuperset(map(type, values)):
        raise InvalidInput(f"input {name!r:.100}: data must be {_ACCEPTED_WORDS[dtype.kind]} for {datatype}")


def _does_not_fit(name: str, datatype: str, dtype: np.dtype[Any], values: Sequence[Any]) -> InvalidInput:
    whole = dtype.kind in "iu"
    limits = np.iinfo(dtype) if whole else np.finfo(dtype)
    low, high = (limits.min, limits.max) if whole else (float(limits.min), float(limits.max))
    least, most = min(values), max(values)
    return InvalidInput(
        f"input {name!r:.100}: value {least if least < low else most!r:.60} does not fit {datatype} ({low}..{high})"
    )


_LIST = frozenset({list})
_ACCEPTED_TYPES = {
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({int, float}),
    "b": frozenset({bool}),
}
_ACCEPTED_WORDS = {"i": "whole numbers", "u": "whole numbers", "f": "numbers", "b": "booleans"}
_ARRAY_CODES = {
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "FP16": "f", "FP32": "f", "FP64": "d",
}  # fmt: skip
"""What `array` calls each datatype, or that which holds it (`_CARRIED_AS`); it knows no booleans."""
_CARRIED_AS = {"FP16": "FP32"}
