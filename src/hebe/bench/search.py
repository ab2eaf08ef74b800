"""How near the search for a server's split comes to trying every lane alone: on modelled servers, and live on this one.
And what one of its placements rests on: the share of lookups that hot rows serve.

Each part can be measured alone, as `hebe bench search --only live-din`: the live ones take minutes each, in which
others had better leave the machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rich.progress import Progress

from hebe.bench import hot_rows
from hebe.bench.search_live import live_figures
from hebe.bench.search_modelled import MODELS, modelled_figures
from hebe.report.figures import Figure

DESCRIPTION = "Hercules' search for a server's split against trying every lane alone, modelled and on this machine."

PARTS: Mapping[str, Callable[[bool, Progress], list[Figure]]] = {
    "modelled": modelled_figures,
    **{f"live-{model}": partial(live_figures, model) for model in MODELS},
    "hot_rows": hot_rows.figures,
}


def run(quick: bool, progress: Progress, only: str | None = None) -> list[Figure]:
    """Measure `search.*`, `hercules.*` and `hot_rows.*`, or `only` one of these parts."""
    return [figure for name, measure in PARTS.items() if only in (None, name) for figure in measure(quick, progress)]
