"""hercules-server: one model on this machine, searched, and the winner measured against the baseline in turns."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.progress import Progress

from hebe.machine.pinning import available_cores
from hebe.planning.server_split.search import Evaluate, Limits, baymax_search, deeprecsys_search, gradient_search
from hebe.planning.server_split.space import ParallelismSpace, host_placements
from hebe.profiling.evaluator import QUICK
from hebe.profiling.steady_machine import SteadyMachine
from hebe.server_configuration import Placement
from hebe.spec import SlaTarget
from hebe_lab.baselines.gain_by_cause import gain_by_cause
from hebe_lab.studies.hercules.live import (
    FIRST_LOOK,
    alternated,
    live_server,
    make_model,
    target_within_reach,
    winner_in_turns,
)
from hebe_lab.studies.hercules.server import Effort as StudyEffort
from hebe_lab.studies.hercules.server import Measured, split_words

FEW_CORES = 4
"""With more, the search keeps to Algorithm 1's steps: each evaluation takes a measurement."""


def space_of(cores: int, effort: StudyEffort) -> ParallelismSpace:
    """What is searched on so many cores."""
    placements = host_placements(cores)
    if effort.accelerator and cores > 1:
        placements += (Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR)
    return ParallelismSpace(cores, effort.batch_sizes, placements, co_located=(1, 2), fused_items=(0, 4096))


def measured_here(
    entry: str, effort: StudyEffort, quick: bool, machine: SteadyMachine, directory: Path, progress: Progress
) -> Measured:
    """Catalog model `entry`: both searches, then what they ended at, measured anew in turns."""
    machine.forget()
    repository = make_model(entry, effort.table_bytes, directory, progress)
    space = space_of(len(available_cores()), effort)
    task = progress.add_task(f"measuring {entry} (measurements)", total=None)
    try:
        sla = target_within_reach(repository, entry, machine=machine)
        each = FIRST_LOOK if quick else QUICK
        advance = partial(progress.advance, task)
        with live_server(repository, entry, sla, each, advance=advance, machine=machine) as server:
            # once each: what both searches end at is measured again, in turns
            measured = both_searches(space, server, Limits(noise=server.noise, runs=1), sla, effort.repeats)
            return replace(measured, machine_words=server.machine_words)
    finally:
        progress.remove_task(task)
        shutil.rmtree(repository)


def both_searches(
    space: ParallelismSpace, evaluate: Evaluate, limits: Limits, sla: SlaTarget, repeats: int
) -> Measured:
    """DeepRecSys' search, or with an accelerator the better one of that and Baymax', then Hercules'. What they end at
    is held against each other in turns, and the winner and the baseline are measured `repeats` times more.
    """
    baseline = deeprecsys_search(space, evaluate, limits)
    asked = baseline.evaluations
    if space.on_accelerator:
        baymax = baymax_search(space, evaluate, limits)
        asked += baymax.evaluations
        baseline = max(baseline, baymax, key=lambda search: search.reached.qps)
    found = gradient_search(space, evaluate, limits, refines=space.cores <= FEW_CORES)
    simple = baseline.closest
    best = winner_in_turns(evaluate, simple, found.closest)
    in_turns = alternated(evaluate, (simple, best), repeats)
    return Measured(
        sla, gain_by_cause(baseline, found), split_words(simple), split_words(best), in_turns[simple], in_turns[best],
        asked + found.evaluations,
    )  # fmt: skip
