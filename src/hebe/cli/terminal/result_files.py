"""Files of what was measured: whether they can be written is known before, and a picture that fails costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from hebe.cli.terminal.output import debugging


def check_result_file(option: str, path: Path) -> None:
    """Wrong usage where nothing can be written there, which one wants to know before the run and not after."""
    from hebe.report.atomic_write import check_writable

    try:
        check_writable(path)
    except OSError as fault:
        raise typer.BadParameter(
            f"{path}: nothing can be written to {fault.filename} ({fault.strerror})", param_hint=option
        ) from None


def draw_result(path: Path | None, draw: Callable[[Path], None]) -> str:
    """Draw a picture, if any; returns why that failed: what was measured is worth more than its picture."""
    if path is None:
        return ""
    try:
        draw(path)
    except Exception as fault:
        if debugging():
            raise
        return f"{path}: {getattr(fault, 'strerror', None) or str(fault) or type(fault).__name__}"
    return ""
