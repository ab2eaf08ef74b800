"""What `hebe profile` checks of its options before anything starts: an option that would do nothing is wrong usage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hebe.cli.terminal.options import check_at_least
from hebe.profiling.strategies import ALGORITHM_1, BAYMAX, DEEPRECSYS, GUIDED, HERCULES
from hebe.query import MOST_ITEMS
from hebe.server_configuration import AcceleratorChoice, Placement

if TYPE_CHECKING:
    from hebe.workload.arrivals import ArrivalProcess

STRATEGIES = (GUIDED, HERCULES, ALGORITHM_1, DEEPRECSYS, BAYMAX, "exhaustive", "random")


def parse_placements(names: Sequence[str]) -> tuple[Placement, ...]:
    """Those of `--placement`, none twice."""
    for name in names:
        if name not in list(Placement):
            raise typer.BadParameter(f"{name!r}: choose {', '.join(Placement)}", param_hint="--placement")
    return tuple(dict.fromkeys(Placement(name) for name in names))


def stated_power(idle_w: float | None, peak_w: float | None) -> tuple[float, float] | None:
    """Those of `--idle-power-w` and `--peak-power-w`, both or neither."""
    if idle_w is None and peak_w is None:
        return None
    if idle_w is None or peak_w is None:
        missing = "--idle-power-w" if idle_w is None else "--peak-power-w"
        raise typer.BadParameter("an estimate needs both: what it draws idle, and at full load", param_hint=missing)
    check_at_least("--idle-power-w", idle_w, least=0.0)
    check_at_least("--peak-power-w", peak_w, more_than=0.0)
    if idle_w > peak_w:
        raise typer.BadParameter(f"{idle_w:g}: must be at most --peak-power-w", param_hint="--idle-power-w")
    return idle_w, peak_w


def check_no_strange_picture(picture: Path, profile: Path) -> None:
    """Wrong usage where there is a file that the picture would take the place of, and no profile that it is of."""
    if picture.is_file() and picture.stat().st_size and not profile.exists():
        raise typer.BadParameter(
            f"{picture} is there, and no {profile}, whose picture it might be: write to another file, or replace it "
            "(--replace)",
            param_hint="--output",
        )


def parse_batch_sizes(text: str | None, largest_query: int) -> tuple[int, ...]:
    """Those of `--batch-sizes`, ascending; none where it was not given. `largest_query`: of the load that is sent."""
    if text is None:
        return ()
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(re.fullmatch(r"[1-9][0-9]{0,5}", piece) for piece in pieces):
        raise typer.BadParameter(f"{text!r}: write numbers of items as 16,64,256", param_hint="--batch-sizes")
    sizes = sorted({int(piece) for piece in pieces})
    most = max(MOST_ITEMS, largest_query)  # `hebe serve` refuses to be split into larger batches
    if sizes[-1] > most:
        raise typer.BadParameter(
            f"{sizes[-1]}: must be at most {most}, the largest query that a server takes", param_hint="--batch-sizes"
        )
    return tuple(sizes)


def parse_cores(text: str | None) -> tuple[int, ...] | None:
    """The cores in a list as 0-3,8. Wrong usage unless this process may use them all."""
    from hebe.machine.pinning import available_cores

    if text is None:
        return None
    cores: set[int] = set()
    for piece in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", piece)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise typer.BadParameter(f"{text!r}: write cores as 0-3,8", param_hint="--cores")
        cores |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    if missing := sorted(cores - set(available_cores())):
        known = ", ".join(map(str, available_cores()))
        raise typer.BadParameter(f"{missing[0]}: this process may use {known}", param_hint="--cores")
    return tuple(sorted(cores))


def chosen_strategy(asked: str | None, placements: Sequence[Placement]) -> str:
    """What `--strategy` says, or where it does not: by predictions, which know of one lane at a time; with an
    accelerator, beside whose lane others run on the cores that are left, Algorithm 1, refined."""
    if asked is not None and asked not in STRATEGIES:
        raise typer.BadParameter(f"{asked!r}: choose {', '.join(STRATEGIES)}", param_hint="--strategy")
    if asked is not None:
        return asked
    return HERCULES if any(placement.on_accelerator for placement in placements) else GUIDED


def check_placements(strategy: str, placements: Sequence[Placement]) -> None:
    """Wrong usage for placements that the strategy would not try; none stands for its default."""
    if not placements:
        return
    tried: tuple[Placement, ...] = tuple(Placement)
    if strategy == DEEPRECSYS:
        tried = (Placement.MODEL_ON_HOST,)
    elif strategy == BAYMAX:
        # One that runs the whole model there is taken before one that runs the DenseNet there; the host has the rest.
        on_it = [each for each in (Placement.HOT_SPARSE_ON_ACCELERATOR, Placement.SPARSE_ON_HOST) if each in placements]
        if not on_it:
            raise typer.BadParameter(
                "--strategy baymax co-locates workers on an accelerator: give sparse-on-host or "
                "hot-sparse-on-accelerator, or leave it out",
                param_hint="--placement",
            )
        tried = (on_it[0], Placement.MODEL_ON_HOST)
    if idle := [placement for placement in placements if placement not in tried]:
        raise typer.BadParameter(
            f"--strategy {strategy} would not try {idle[0]}: leave it out, or choose another strategy",
            param_hint="--placement",
        )


def check_arrivals(form: str, process: ArrivalProcess, *, quick: bool) -> None:
    """Wrong usage for arrivals, `form` in words, that repeat too slowly for the probes of a measurement."""
    if process.period_s is None:
        return
    from hebe.load_generator.error import LoadError
    from hebe.load_generator.search.qps_search import LONGEST_PROBE, check_periods
    from hebe.profiling.evaluator import QUICK, Effort

    probe_s = (QUICK if quick else Effort()).probe_s
    try:
        check_periods(process, probe_s)
    except LoadError:
        raise typer.BadParameter(
            f"{form} repeats every {process.period_s:g} s, but a probe lasts {LONGEST_PROBE * probe_s:g} s at most, "
            "and only over whole periods is the mean the rate: let them repeat faster, as with burst:5:0.2:2 or a "
            "larger SPEED of a trace",
            param_hint="--arrivals",
        ) from None


def has_hot_rows(strategy: str, placements: Sequence[Placement]) -> bool:
    """Whether a placement is tried that has hot rows on the accelerator."""
    return Placement.HOT_SPARSE_ON_ACCELERATOR in placements or (strategy == BAYMAX and not placements)


def chosen_keys(asked: str | None, strategy: str, placements: Sequence[Placement]) -> str:
    """What `--keys` says, or where it does not: with all rows alike, none would be hot."""
    if asked is not None:
        return asked
    return "reuse" if has_hot_rows(strategy, placements) else "uniform"


def check_accelerator(strategy: str, placements: Sequence[Placement], asked: str | None) -> None:
    """Wrong usage for an accelerator that is none, or that no placement would run on."""
    if asked is None:
        return
    if asked not in list(AcceleratorChoice):
        raise typer.BadParameter(f"{asked!r}: choose {', '.join(AcceleratorChoice)}", param_hint="--accelerator")
    if not has_hot_rows(strategy, placements) and not any(placement.on_accelerator for placement in placements):
        raise typer.BadParameter(
            f"is for --placement {Placement.SPARSE_ON_HOST} and {Placement.HOT_SPARSE_ON_ACCELERATOR}",
            param_hint="--accelerator",
        )


def check_hot_rows(
    strategy: str, placements: Sequence[Placement], accelerator_memory: str | None, key_trace: Path | None
) -> None:
    """Wrong usage for options that say which rows are hot where no placement wants to know."""
    hot = has_hot_rows(strategy, placements)
    for option, value in (("--accelerator-memory", accelerator_memory), ("--key-trace", key_trace)):
        if value is not None and not hot:
            raise typer.BadParameter(f"is for --placement {Placement.HOT_SPARSE_ON_ACCELERATOR}", param_hint=option)
