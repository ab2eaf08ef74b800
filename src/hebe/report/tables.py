"""Numbers as tables show them."""

from __future__ import annotations


def format_number(value: float) -> str:
    """Four significant digits, with thousands separated: 0.9312, 3,330, 1.2e-05."""
    if value != 0 and not 1e-3 <= abs(value) < 1e15:
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_estimate(value: float, *, estimated: bool) -> str:
    """`format_number`, with a `~` before what is estimated."""
    return f"{'~' if estimated else ''}{format_number(value)}"
