"""Hera, Fig. 17: EMU of Hera's pairs without cache partitions, and on other configurations of the node.

The pairs are those that Algorithm 2 forms first on each configuration; their EMU is measured in simulated co-runs
(`simulation.co_run`). Without partitions, workers of both models compete for the whole last-level cache, each getting
of it in proportion to what it fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.progress import Progress

from hebe.planning.colocation.colocation import share_server
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.latency import grouped_bars
from hebe_lab.studies.hera.emu import hera_pairs
from hebe_lab.studies.hera.node import CoRunCase, Effort, HeraNode, Measured, measure_all, scaling_badly
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Hera, Fig. 17: EMU without cache partitions, and with other cores, cache ways and memory bandwidth."

EFFORTS = (Effort(1_000, 8_000), Effort(10_000, 100_000), Effort(20_000, 400_000))
NODES = (
    HeraNode(16, 11, 128e9),
    HeraNode(12, 11, 128e9),
    HeraNode(24, 11, 128e9),
    HeraNode(16, 5, 128e9),
    HeraNode(16, 11, 85e9),
    HeraNode(16, 11, 256e9),
)
"""Cores, cache ways, peak memory bandwidth. The first is Hera's; the others are ours: the paper's are in its figure."""

PAPER_WITHOUT_PERCENT, PAPER_PARTITIONS_PERCENT = 22.0, 8.0
PAPER_CONFIGURATIONS = "30%, 35%, 18%"


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Hera's pairs on one configuration, and what was measured of them."""

    node: HeraNode
    pairs: list[tuple[str, str]]
    cases: list[CoRunCase]


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Measure the pairs of every configuration, on Hera's own also without partitions."""
    effort = options.pick(*EFFORTS)
    nodes = NODES[: options.pick(3, len(NODES), len(NODES))]
    task = progress.add_task("profiles of all configurations", total=len(nodes))
    chosen = []
    for node in nodes:
        chosen.append(_pairs_of(node, effort))
        progress.advance(task)
    base = chosen[0]
    unpartitioned = [CoRunCase(case.node, case.tenants, effort, partitioned=False) for case in base.cases]
    cases = [case for each in chosen for case in each.cases] + unpartitioned
    answers = measure_all("co-runs of Hera's pairs", cases, progress)
    by_node: list[list[Measured]] = []
    for each in chosen:
        by_node.append(answers[: len(each.cases)])
        answers = answers[len(each.cases) :]
    with_, without = _mean(by_node[0]), _mean(answers)
    gains = {_label(each.node): 100 * (_mean(found) - 1) for each, found in zip(chosen, by_node, strict=True)}
    return StudyResult(
        figures=[
            Figure(
                "hera.emu_over.deeprecsys.without_partitions", 100 * (without - 1), "%", runs=len(answers),
                paper=PAPER_WITHOUT_PERCENT, note="mean of Hera's pairs, the cache shared by all",
            ),
            Figure(
                "hera.emu_gain.partitions", 100 * (with_ - without), "points of EMU", runs=len(answers),
                paper=PAPER_PARTITIONS_PERCENT, note="what cache partitions add to that",
            ),
            Figure(
                "hera.emu_over.deeprecsys.least_configuration", min(gains.values()), "%", min(gains.values()),
                max(gains.values()), len(gains), paper=PAPER_CONFIGURATIONS, note="least and range of configurations",
            ),
        ],
        content=[
            "By how much the EMU of Hera's pairs is above that of one model a server, in simulated co-runs.",
            Heading("Fig. 17(a): with and without cache partitions"),
            Picture(grouped_bars(_bars(base, by_node[0], answers), "EMU (%)", "Cache partitions"), "Hera's node."),
            Table(
                "EMU with and without cache partitions",
                ["model", "with", "ways", "ways of the other", "without", "partitioned"],
                list(map(_ablation_row, base.cases, answers, by_node[0])),
                f"The paper: {PAPER_WITHOUT_PERCENT}% over one model a server without partitions, "
                f"{PAPER_PARTITIONS_PERCENT} more with them.",
            ),
            Heading("Fig. 17(b): other configurations"),
            Picture(
                grouped_bars({label: {"EMU above 100%": gain} for label, gain in gains.items()}, "%", "Configurations"),
                "Cores, cache ways, memory bandwidth in GB/s.",
            ),
            Table(
                "EMU of Hera's pairs by configuration",
                ["cores", "cache ways", "GB/s", "low scalability", "least", "mean", "above one model a server"],
                list(map(_configuration_row, chosen, by_node)),
                f"The paper's three configurations, whose numbers stand in its figure only: {PAPER_CONFIGURATIONS}.",
            ),
            _explanation(base, by_node[0], answers),
        ],
        lead=["hera.emu_over.deeprecsys.without_partitions", "hera.emu_gain.partitions"],
    )  # fmt: skip


def _explanation(base: _Pairs, partitioned: Sequence[Measured], without: Sequence[Measured]) -> str:
    gained = {
        " + ".join(pair): 100 * (one.utilization - other.utilization)
        for pair, one, other in zip(base.pairs, partitioned, without, strict=True)
    }
    most = max(gained, key=lambda pair: gained[pair])
    return (
        f"Partitions help {most} the most, by {gained[most]:.1f} points of EMU. Without them a model takes of the "
        "cache in proportion to what it fetches, so that one that streams rows displaces what the other reuses; how "
        "much it takes on real caches is not tested. The second table changes cores, ways or bandwidth alone. Fewer "
        "cores, or more bandwidth, leave fewer models that scale badly; less bandwidth makes more of them. DLRM (B) is "
        "among them on every socket, for it is memory's capacity that holds it to eight workers."
    )


def _pairs_of(node: HeraNode, effort: Effort) -> _Pairs:
    pairs = hera_pairs(node, scaling_badly(node))
    return _Pairs(node, pairs, [CoRunCase(node, share_server(node.tables, pair).tenants, effort) for pair in pairs])


def _mean(found: list[Measured]) -> float:
    """The mean EMU; 1 where no pair is formed."""
    return float(np.mean([answer.utilization for answer in found])) if found else 1.0


def _label(node: HeraNode) -> str:
    return f"{node.cores}, {node.cache_ways}, {node.bandwidth_bytes_per_s / 1e9:.0f}"


def _bars(base: _Pairs, partitioned: list[Measured], without: list[Measured]) -> dict[str, dict[str, float]]:
    return {
        " + ".join(pair): {"shared cache": 100 * one.utilization, "partitioned": 100 * other.utilization}
        for pair, one, other in zip(base.pairs, without, partitioned, strict=True)
    }


def _ablation_row(case: CoRunCase, without: Measured, partitioned: Measured) -> list[Cell]:
    first, second = case.tenants
    shown = [f"{100 * answer.utilization:.1f}%" for answer in (without, partitioned)]
    return [first.model, second.model, first.cache_ways, second.cache_ways, *shown]


def _configuration_row(each: _Pairs, found: list[Measured]) -> list[Cell]:
    node = each.node
    least = min((answer.utilization for answer in found), default=1.0)
    return [
        node.cores, node.cache_ways, node.bandwidth_bytes_per_s / 1e9, ", ".join(scaling_badly(node)) or "none",
        f"{100 * least:.0f}%", f"{100 * _mean(found):.0f}%", f"{100 * (_mean(found) - 1):.0f}%",
    ]  # fmt: skip
