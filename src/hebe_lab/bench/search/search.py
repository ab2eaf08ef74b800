"""How near the search for a server's split comes to trying every lane alone: on modelled servers, and live on this one.
And what one of its placements rests on: the share of lookups that hot rows serve.

Each part can be measured alone, as `hebe bench search --only live-din`: the live ones take minutes each, in which
others had better leave the machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rich.progress import Progress

from hebe.machine.pinning import available_cores
from hebe.report.figures import Figure
from hebe_lab.bench.embeddings import hot_rows
from hebe_lab.bench.search.live import gain_figures, live_figures
from hebe_lab.bench.search.modelled import MODELS, modelled_figures

DESCRIPTION = "Hercules' search for a server's split against trying every lane alone, modelled and on this machine."

_MOST_CORES = 4
"""With more there are too many ways to split the server to measure them all."""


def _live(model: str, quick: bool, progress: Progress) -> list[Figure]:
    measure = live_figures if len(available_cores()) <= _MOST_CORES else gain_figures
    return measure(model, quick, progress)


PARTS: Mapping[str, Callable[[bool, Progress], list[Figure]]] = {
    "modelled": modelled_figures,
    **{f"live-{model}": partial(_live, model) for model in MODELS},
    "hot_rows": hot_rows.figures,
}


def run(quick: bool, progress: Progress, only: str | None = None) -> list[Figure]:
    """Measure `search.*`, `hercules.*` and `hot_rows.*`, or `only` one of these parts."""
    return [figure for name, measure in PARTS.items() if only in (None, name) for figure in measure(quick, progress)]
