"""The boundary of the library: what functions are given, held against their annotations."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from hebe.capacity.errors import ArgumentError

_WORDS = {float: "a number", int: "a whole number", bool: "True or False", str: "text", types.NoneType: "None"}

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def checked(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """`function`, which is given Python's own numbers in place of NumPy's, and raises `ArgumentError` for an argument
    of another kind than its annotation says. Callables are left alone.
    """
    parameters = signature(function)

    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        bound = parameters.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            hint = _hints(function)[name]
            if get_origin(hint) is not Callable:
                bound.arguments[name] = _converted(name, value, hint)
        return function(*bound.args, **bound.kwargs)

    return call


@cache
def _hints(function: Callable[..., object]) -> dict[str, Any]:
    return get_type_hints(function)


def _converted(field: str, value: Any, hint: Any) -> Any:
    """`value` as the annotation has it. Raises `ArgumentError`."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        whole = get_origin(kind) or kind
        if whole in (float, int) and _is_number(value, whole):
            return _number(field, value, whole)
        if whole is bool and isinstance(value, bool | np.bool_):
            return bool(value)
        if whole is Mapping and isinstance(value, Mapping):
            return {each: _converted(field, inner, get_args(kind)[1]) for each, inner in value.items()}
        if whole is Sequence and isinstance(value, Sequence) and not isinstance(value, str):
            return [_converted(field, inner, get_args(kind)[0]) for inner in value]
        if whole not in (float, int, bool, Mapping, Sequence) and isinstance(value, whole):
            return value
    raise ArgumentError(field, f"{value!r:.200}: must be {' or '.join(dict.fromkeys(map(_described, kinds)))}")


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool | np.bool_)


def _number(field: str, value: Any, kind: type) -> Any:
    try:
        float(value)
    except OverflowError:
        raise ArgumentError(field, "is too large a number") from None
    return kind(value)


def _described(kind: Any) -> str:
    whole, inner = get_origin(kind) or kind, get_args(kind)
    if whole is Mapping:
        return f"a mapping of names to {_described_any(inner[1])}"
    if whole is Sequence:
        return f"a list of {_described_any(inner[0])}"
    return _WORDS.get(whole) or ("a path" if whole.__name__ == "PathLike" else f"a {whole.__name__}")


def _described_any(hint: Any) -> str:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return " or ".join(dict.fromkeys(map(_described, kinds)))
