"""What `hebe` exports, and the classes of what its exports return."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from surface_runs import Workplace
from surface_sources import PACKAGES, without_modules

import hebe

_SPECIAL = ("__init__", "__call__", "__enter__", "__exit__", "__len__", "__iter__", "__getitem__")


def export_lines(place: Workplace) -> Iterator[str]:
    """A line for each export, and for each public member of the classes that a user meets there."""
    names = sorted({*hebe.__all__, *(name for name in dir(hebe) if not name.startswith("_"))})
    listed = set(hebe.__all__)
    for name in names:
        if name in listed:
            yield from _described(f"hebe.{name}", getattr(hebe, name))
    model = hebe.load(place.models, place.model)
    log = hebe.open_update_log(str(place.update_log))
    producer = log.producer()
    try:
        made = "hebe.open_update_log(...)"
        returned = {"hebe.load(...)": model, made: log, f"{made}.producer()": producer}
        for words, value in returned.items():
            for line in _described(words, type(value)):
                if "__init__" not in line:  # a user has others make it
                    yield line
    finally:
        producer.close()
        log.close()
        model.close()


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"{name}: class {value.__name__}({', '.join(base.__name__ for base in value.__bases__)})"
        for member in sorted(dir(value)):
            owner = next(cls for cls in value.__mro__ if member in vars(cls))
            ours = owner.__module__.partition(".")[0] in PACKAGES
            if ours and (not member.startswith("_") or member in _SPECIAL):
                yield f"{name}.{member}: {_member_words(vars(owner)[member])}"
        for field, kind in sorted(getattr(value, "__annotations__", {}).items()):
            if not field.startswith("_") and not hasattr(value, field):
                yield f"{name}.{field}: attribute {kind}"
    elif callable(value):
        yield f"{name}: function {_signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _member_words(member: Any) -> str:
    if isinstance(member, property):
        return f"property {_signature(member.fget)}"
    if isinstance(member, classmethod | staticmethod):
        return f"{type(member).__name__} {_signature(member.__func__)}"
    if callable(member):
        return f"method {_signature(member)}"
    return "attribute"


def _signature(function: Any) -> str:
    text = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))
    return without_modules(text)
