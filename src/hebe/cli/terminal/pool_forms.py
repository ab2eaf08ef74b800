"""The short forms in which a command line names pools and server types: `gpu=1,cpu=13`."""

from __future__ import annotations

import typer


def parse_counts(text: str, option: str) -> dict[str, int]:
    """Counts by server type from `TYPE=COUNT,TYPE=COUNT`. Wrong usage of `option` if it is none."""
    counts: dict[str, int] = {}
    for entry in text.split(","):
        name, equals, number = (part.strip() for part in entry.rpartition("="))
        if not equals or not name or not number.isascii() or not number.isdigit():
            raise typer.BadParameter(f"{entry.strip()!r}: must be TYPE=COUNT, separated by commas", param_hint=option)
        if name in counts:
            raise typer.BadParameter(f"server type {name} is given twice", param_hint=option)
        if len(number) > 9:
            raise typer.BadParameter(f"{name}={number}: at most 999,999,999", param_hint=option)
        counts[name] = int(number)
    return counts


def parse_types(text: str, option: str) -> list[str]:
    """Names of server types, separated by commas, each once. Wrong usage of `option` otherwise."""
    names = [name.strip() for name in text.split(",")]
    for at, name in enumerate(names):
        if not name:
            raise typer.BadParameter(f"{text!r}: must be names separated by commas", param_hint=option)
        if name in names[:at]:
            raise typer.BadParameter(f"server type {name} is given twice", param_hint=option)
    return names
