"""What the measurements say: figures for `out/figures/peers.json`, and the table that is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from rich.table import Table

from hebe.report.figures import Figure, ratio_of_medians
from hebe.report.plots.latency import grouped_bars

from .run import Contender, Results
from .wrk import CORRECTED, Wrk

HEBE = "hebe"
TRITON = {"triton": "over_triton", "triton-backend": "over_triton_backend"}
"""The two ways to run Triton, each compared with in figures of its own name."""
PYTHON = {
    "over_best_python": ("bentoml", "torchserve"),
    "over_best_python_eager": ("bentoml-eager", "torchserve-eager"),
}
"""The Python servers, with the model scripted, which is their best setting, and as a plain module."""
_TITLES = {
    "hebe": "Hebe",
    "triton": "Triton (pytriton)",
    "triton-backend": "Triton (Python backend)",
    "bentoml": "BentoML",
    "torchserve": "TorchServe",
}


def figures(results: Results, concurrencies: Sequence[int]) -> list[Figure]:
    """Ratios first, then every absolute rate; what was not measured is absent."""
    found: list[Figure] = []
    for concurrency in concurrencies:
        for server, comparison in TRITON.items():
            found += _over_triton(results, concurrency, server, comparison)
        for comparison, servers in PYTHON.items():
            found += _over_best_python(results, concurrency, comparison, servers)
    return found + _absolute(results)


def _over_triton(results: Results, concurrency: int, server: str, comparison: str) -> list[Figure]:
    peers = _measured(results, concurrency, lambda c: c.client == "perf_analyzer" and c.server == server)
    if not peers:
        return []
    fastest = max(peers, key=lambda peer: median(results.samples(peer, concurrency, "queries_per_s")))
    quickest = min(peers, key=lambda peer: median(results.samples(peer, concurrency, "p99_ms")))
    found = []
    for protocol, suffix in (("http", ""), ("grpc", ".grpc")):
        ours = Contender(HEBE, "perf_analyzer", protocol)
        name = f"{comparison}{suffix}.c{concurrency}"
        # The targets are of Hebe over HTTP against the first way; the others are stated beside it.
        targets = (">= 2.0", "<= 1.0") if (comparison, protocol) == ("over_triton", "http") else (None, None)
        found += _ratio(f"serve.{name}", results, ours, fastest, concurrency, "queries_per_s", targets[0])
        found += _ratio(f"serve.p99_{name}", results, ours, quickest, concurrency, "p99_ms", targets[1])
    return found


def _over_best_python(results: Results, concurrency: int, comparison: str, servers: Sequence[str]) -> list[Figure]:
    peers = _measured(results, concurrency, lambda c: c.client == "wrk" and c.server in servers)
    if not peers:
        return []
    fastest = max(peers, key=lambda peer: median(results.samples(peer, concurrency, "queries_per_s")))
    ours = Contender(HEBE, "wrk", "http")
    name = f"serve.{comparison}.c{concurrency}"
    return _ratio(name, results, ours, fastest, concurrency, "queries_per_s", ">= 1.5")


def _measured(results: Results, concurrency: int, wanted: Callable[[Contender], bool]) -> list[Contender]:
    return [contender for contender, c in results.rounds if c == concurrency and wanted(contender)]


def _ratio(
    name: str,
    results: Results,
    ours: Contender,
    theirs: Contender,
    concurrency: int,
    quantity: str,
    target: str | None,
) -> list[Figure]:
    a, b = (results.samples(contender, concurrency, quantity) for contender in (ours, theirs))
    if not a or not b:
        return []
    value, low, high = ratio_of_medians(a, b)
    unit = "queries/s" if quantity == "queries_per_s" else "ms"
    settings = results.servers[theirs.server]["settings"]
    note = f"{median(a):.4g} against {median(b):.4g} {unit} of {theirs} [{settings}]"
    return [Figure(name, value, "ratio", low, high, len(a), target, note=note)]


def _absolute(results: Results) -> list[Figure]:
    found = []
    for (contender, concurrency), rounds in results.rounds.items():
        rates = [one.queries_per_s for one in rounds]
        p50, p99 = (median(getattr(one, quantity) for one in rounds) for quantity in ("p50_ms", "p99_ms"))
        name = f"peers.{contender.server}.{contender.protocol}.{contender.client}.c{concurrency}"
        corrected = f"; {CORRECTED}" if contender.client == Wrk.name else ""
        note = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms{corrected}; low and high are the extremes"
        found.append(
            Figure(
                name,
                median(rates),
                "queries/s",
                min(rates),
                max(rates),
                len(rates),
                note=note,
            )
        )
    return found


def picture(results: Results, concurrencies: Sequence[int]) -> str:
    """Queries/s by concurrency, a bar a server and client, each in its best setting and faster protocol: an `<svg>`."""
    groups: dict[str, dict[str, float]] = {}
    for concurrency in concurrencies:
        bars = groups.setdefault(f"concurrency {concurrency}", {})
        for contender in dict.fromkeys(contender for contender, _ in results.rounds):
            rates = results.samples(contender, concurrency, "queries_per_s")
            if rates and contender.server in _TITLES:
                name = f"{_TITLES[contender.server]}, {contender.client}"
                bars[name] = max(bars.get(name, 0.0), median(rates))
    return grouped_bars(groups, "queries/s", "One DLRM, 32 items a query, client and server on two cores")


def table(results: Results, concurrencies: Sequence[int]) -> Table:
    """One line a contender: queries/s (p50/p99 ms) at each concurrency, medians over the rounds."""
    shown = Table(title="closed loop, medians: queries/s (p50/p99 ms)", caption=f"{Wrk.name}: {CORRECTED}")
    for column in ("server", "client", "protocol"):
        shown.add_column(column)
    for concurrency in concurrencies:
        shown.add_column(f"concurrency {concurrency}", justify="right")
    for contender in dict.fromkeys(contender for contender, _ in results.rounds):
        cells = []
        for concurrency in concurrencies:
            rounds = results.rounds.get((contender, concurrency))
            if not rounds:
                cells.append("")
                continue
            rate, p50, p99 = (
                median(getattr(one, quantity) for one in rounds) for quantity in ("queries_per_s", "p50_ms", "p99_ms")
            )
            cells.append(f"{rate:,.0f} ({p50:.2f}/{p99:.2f})")
        shown.add_row(contender.server, contender.client, contender.protocol, *cells)
    return shown
