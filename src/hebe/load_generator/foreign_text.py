"""Text that another server sent, made fit to be shown: it may move a terminal's cursor, or be no Unicode at all."""

from __future__ import annotations

from typing import Any

_MOST_NESTED = 64


def printable(text: str) -> str:
    r"""`text` on one line: line breaks become spaces, what cannot be shown its escape, such as \x1b."""
    return "".join(" " if each.isspace() else each if each.isprintable() else _escape(each) for each in text)


def printable_json(value: Any) -> Any:
    """A copy of JSON `value` with all its strings `printable`. Raises `ValueError` where it is nested too deep."""
    return _printable_json(value, _MOST_NESTED)


def _printable_json(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict | list) and not levels:
        raise ValueError("it is nested too deep")
    if isinstance(value, dict):
        return {printable(name): _printable_json(inner, levels - 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [_printable_json(inner, levels - 1) for inner in value]
    return value


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
