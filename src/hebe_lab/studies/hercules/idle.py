"""Hercules, Fig. 5: what op workers idle, and where a batch's time goes, for the six models.

Each model runs on one core of this machine, op by op; which op waits for which is its graph's. What several op workers
of one inference thread would idle follows from both (Fig. 5c); beside it, what the analytic server of Fig. 4 has.

`timed_ops` makes a catalog model with small tables and times its ops; `speedup_of_two` is what sharing its batches out
gains.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.progress import Progress

from hebe.machine.pinning import available_cores, pin_thread
from hebe.models.repository.repository import ModelRepository
from hebe.profiling.measurements.op_times import OpTimes, measure_op_times
from hebe.query import Batch, SubQuery
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.latency import time_per_stage
from hebe.report.plots.style import QUIET, SERIES, drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.runtime.executors.gil_free_executor import UnlockedExecutor
from hebe.runtime.loaded_model import LoadedModel
from hebe.server_configuration import Lane, Placement
from hebe_lab.studies.hercules.fleet import ENTRIES, server_of
from hebe_lab.studies.hercules.live import make_model
from hebe_lab.studies.hps.setting import scratch_directory
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Hercules, Fig. 5: idle share of op workers and latency by class of op, six models."

ITEMS = 256
WORKERS = (1, 2, 3, 4)
PAPER_LEAST, PAPER_GREATEST = 0.25, 0.74
"""Of 2 to 4 op workers, over all six models (section III-A)."""

_SEVERAL = WORKERS[1:]
_ELEMENT_WISE = "element-wise and other"


@dataclass(frozen=True, slots=True)
class Effort:
    """Most bytes of a model's tables, and timed runs of each batch."""

    table_bytes: int
    repeats: int


EFFORTS = (Effort(16 << 20, 3), Effort(512 << 20, 15), Effort(2 << 30, 41))


@dataclass(frozen=True, slots=True)
class Idle:
    """One model's batch: seconds by class of op on one core, and the idle share by op workers, of this machine's times
    and of the analytic server's; and by what factor two op workers of this server are faster than one, None where it
    has one core."""

    seconds: Mapping[str, float]
    measured: Mapping[int, float]
    modelled: Mapping[int, float]
    speedup: float | None = None

    @property
    def scheduled_speedup(self) -> float:
        """By what factor two op workers that take whole ops side by side are faster than one, if they but wait."""
        return 2 * (1 - self.measured[2])


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Make each model, time its ops, schedule them."""
    effort = options.pick(*EFFORTS)
    found = {}
    with scratch_directory() as directory:
        for name, entry in progress.track(ENTRIES.items(), description="models"):
            times, speedup = timed_ops(entry, effort.table_bytes, ITEMS, effort.repeats, directory, progress)
            seconds = {str(of): value for of, value in times.by_class().items()}
            found[name] = Idle(
                _without_other(seconds),
                {count: times.idle_share(count) for count in WORKERS},
                modelled_idle(name),
                speedup,
            )
    return told(found, effort)


def modelled_idle(name: str) -> dict[int, float]:
    """Idle share by op workers of one inference thread on the analytic T2."""
    server = server_of(name, "T2")
    return {count: server.idle_share(Lane(Placement.MODEL_ON_HOST, 1, count, ITEMS), ITEMS) for count in WORKERS}


def _without_other(seconds: Mapping[str, float]) -> dict[str, float]:
    merged = {of: value for of, value in seconds.items() if of not in ("other", "element-wise")}
    return {**merged, _ELEMENT_WISE: seconds.get("other", 0.0) + seconds.get("element-wise", 0.0)}


def told(found: Mapping[str, Idle], effort: Effort) -> StudyResult:
    """What the models' times come to."""
    several = [idle.measured[count] for idle in found.values() for count in _SEVERAL]
    figures = [
        Figure("hercules.idle.least", min(several), "share", paper=PAPER_LEAST, note="2 to 4 op workers, six models"),
        Figure("hercules.idle.greatest", max(several), "share", paper=PAPER_GREATEST),
        *(
            Figure(f"hercules.idle.{name.lower()}.workers_{count}", idle.measured[count], "share")
            for name, idle in found.items()
            for count in _SEVERAL
        ),
        *(
            Figure(f"hercules.idle.lookup_share.{name.lower()}", _share(idle, "embedding lookup"), "share")
            for name, idle in found.items()
        ),
        *(
            Figure(
                f"hercules.idle.over_schedule.{name.lower()}",
                idle.speedup / idle.scheduled_speedup,
                "ratio",
                note=f"two op workers of this server are {idle.speedup:.2f} times as fast as one, those that take ops "
                f"side by side {idle.scheduled_speedup:.2f} times at best",
            )
            for name, idle in found.items()
            if idle.speedup is not None
        ),
    ]
    return StudyResult(
        figures,
        [
            f"A batch of {ITEMS} items of each model on one core of this machine, medians of {effort.repeats} runs. "
            f"Layers are those of production size; tables have at most {effort.table_bytes / 2**20:,.0f} MiB of their "
            "rows, so lookups come from caches more than they would. Lookups are timed as one pass, which the tables "
            "share by the bytes they gather; the DenseNet's ops one by one, scaled to what the DenseNet takes as it is "
            "served. Idle shares are those of a schedule: each op runs on the first op worker that is free once what "
            "it reads is there. No op worker disturbs another, so real ones idle more.",
            Heading("Fig. 5(c): idle share by op workers"),
            Picture(_picture(found), "Of the time of all op workers of one inference thread; with one there is none."),
            _idle_table(found),
            "The paper has 25% to 74% with 2 to 4 op workers, growing linearly with them, from Caffe2's operators on "
            "20 cores. What idles is the critical path: a model whose ops all wait for each other keeps one worker "
            "busy, so n of them idle 1 - 1/n: 50%, 67%, 75%.",
            *_shared_out(found),
            Heading("Latency by class of op"),
            Picture(
                time_per_stage(
                    {name: {of: 1e3 * value for of, value in idle.seconds.items()} for name, idle in found.items()},
                    title=f"A batch of {ITEMS} items on one core",
                )
            ),
            Table(
                "Share of a batch's time by class of op",
                ["model", "ms", *_classes(found)],
                [
                    [
                        name,
                        1e3 * sum(idle.seconds.values()),
                        *(f"{_share(idle, of):.1%}" if idle.seconds[of] else None for of in _classes(found)),
                    ]
                    for name, idle in found.items()
                ],
                "One op worker; a class that a model lacks is empty.",
            ),
        ],
        lead=["hercules.idle.least", "hercules.idle.greatest"],
    )


def _shared_out(found: Mapping[str, Idle]) -> list[Heading | str | Table]:
    """What this server's op workers do instead; nothing with one core."""
    rows: list[list[Cell]] = [
        [name, f"{idle.scheduled_speedup:.2f}", f"{idle.speedup:.2f}"]
        for name, idle in found.items()
        if idle.speedup is not None
    ]
    if not rows:
        return []
    return [
        Heading("Ops side by side, or items shared out"),
        "This server's op workers share out the items, of the lookups and of the DenseNet, so that none waits for a "
        "critical path. What two of them gain over one was measured, in turns; beside it stands what two gain that "
        "take whole ops side by side, by the schedule above, in which no op worker disturbs another.",
        Table("Speed-up of two op workers", ["model", "ops side by side, at best", "as served, measured"], rows),
    ]


def _classes(found: Mapping[str, Idle]) -> list[str]:
    return list(dict.fromkeys(of for idle in found.values() for of in idle.seconds))


def _share(idle: Idle, of: str) -> float:
    return idle.seconds[of] / sum(idle.seconds.values())


def _idle_table(found: Mapping[str, Idle]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            *(f"{idle.measured[count]:.0%}" for count in _SEVERAL),
            *(f"{idle.modelled[count]:.0%}" for count in _SEVERAL),
        ]
        for name, idle in found.items()
    ]
    return Table(
        "Idle share of op workers",
        ["model", *(f"{count} workers" for count in _SEVERAL), *(f"T2, {count} workers" for count in _SEVERAL)],
        rows,
        "Of this machine's op times, and of the analytic T2's, where branches of the DenseNet run side by side and the "
        "tables share out evenly.",
    )


def _picture(found: Mapping[str, Idle]) -> str:
    counts: Sequence[int] = WORKERS
    with drawing(height=4.2) as (canvas, axes):
        within = f"the paper: {PAPER_LEAST:.0%} to {PAPER_GREATEST:.0%}"
        axes.axhspan(PAPER_LEAST, PAPER_GREATEST, color=QUIET, alpha=0.15, linewidth=0, label=within)
        for number, (name, idle) in enumerate(found.items()):
            shares = [idle.measured[count] for count in counts]
            axes.plot(counts, shares, marker="o", color=SERIES[number % len(SERIES)], label=name)
        axes.set_xticks(counts)
        axes.set_ylim(0.0, 1.0)
        plain_ticks(axes.yaxis, lambda value: f"{value:.0%}")
        plain_ticks(axes.xaxis, format_number)
        axes.set_xlabel("op workers of one inference thread")
        axes.set_ylabel("idle share of their time")
        axes.set_title("Idle op workers")
        canvas.legend(loc="outside lower center", ncols=4)
        return to_svg(canvas, f"Idle share of op workers: {', '.join(found)}")


_IN_A_ROW = 3
"""Runs with as many threads, before it is the other's turn: the first one may wait for threads."""


def timed_ops(
    entry: str, table_bytes: int, items: int, repeats: int, directory: Path, progress: Progress
) -> tuple[OpTimes, float | None]:
    """Op times of catalog model `entry` for batches of `items`, and by what factor two op workers of this server are
    faster than one, None with one core; the model is gone afterwards."""
    repository = make_model(entry, table_bytes, directory, progress)
    try:
        model = LoadedModel.load(repository, entry)
        try:
            times = measure_op_times(model, ModelRepository(repository).open(entry).dense_net(), items, repeats)
            return times, speedup_of_two(model, items, repeats)
        finally:
            model.close()
    finally:
        shutil.rmtree(repository)


def speedup_of_two(model: LoadedModel, items: int, repeats: int) -> float | None:
    """What a batch takes a worker of one core, over what it takes one of two cores; medians, measured in turns."""
    cores = available_cores()[-2:]
    if len(cores) < 2:
        return None
    batch = Batch(0, (SubQuery(model.random_query(items), 0, items),), items)

    def measured() -> float:
        executors = [model.new_unlocked_executor(items, count) for count in (1, 2)]
        taken: list[list[float]] = [[], []]
        for _ in range(1 + repeats):
            for count, (executor, seconds) in enumerate(zip(executors, taken, strict=True), 1):
                seconds.append(_typical_s(executor, batch, cores[:count]))
        for executor in executors:
            executor.close()
        return median(taken[0][1:]) / median(taken[1][1:])

    with ThreadPoolExecutor(1) as thread:  # of its own: a thread keeps its cores
        return thread.submit(measured).result()


def _typical_s(executor: UnlockedExecutor, batch: Batch, cores: tuple[int, ...]) -> float:
    pin_thread(cores)
    torch.set_num_threads(1)
    return median(executor.run(batch).service_s for _ in range(_IN_A_ROW))
