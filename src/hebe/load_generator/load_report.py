"""What one run of the load generator found."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hebe.latency import Floats, LatencyRecorder, nearest_rank
from hebe.load_generator.senders.sender import OUT_OF_FILES, OUT_OF_PORTS
from hebe.spec import SlaTarget

MOST_LAG_S = 5e-3
MOST_LAG_SHARE_OF_SLA = 0.1
MOST_CPU_SHARE = 0.9
MOST_WAITED_SHARE = 0.01
MOST_NOT_SENT_SHARE = 0.01
"""Beyond these, the generator says that it was itself the bottleneck: p99 of the schedule lag (the smaller of 5 ms and
a tenth of the SLA), its share of a core, and the shares of queries that waited for a free connection and that were
still to be sent at the end."""

NOT_SENT = "not sent in time"
"""The kind of failure that is the generator's own."""

WITHDRAWN = "still waiting for a connection at the end"
UNANSWERED = "unanswered when interrupted"

_NOT_THE_SERVERS = frozenset((NOT_SENT, WITHDRAWN, UNANSWERED, OUT_OF_FILES, OUT_OF_PORTS))
"""Kinds of failure that say nothing of the server."""

_WITHOUT_CONNECTION = {
    OUT_OF_FILES: "raise its limit of them (ulimit -n), or give fewer --connections",
    OUT_OF_PORTS: "give fewer --connections",
}
"""Kinds of failure for which the generator says so whatever their share, and what helps."""

MOST_EXCESS_SHARE = 0.05
"""By so much more may be answered than arrives before it is said where that comes from."""

_CHANCE = 3.0
"""Standard deviations of a Poisson number: by so much, those under way at the window's ends may differ by chance."""

_ROOM_LEFT = 0.5
"""Of the share of queries that may miss the SLA, the queries that did not wait for a connection may take so much."""

_FEW = 100
"""Of fewer queries, the 99th percentile is the last one."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A reason why the generator may have limited a run; of several of the same `kind`, the largest weighs most."""

    kind: str
    weight: float
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class LoadReport:
    """One run, warm-up left out.

    `requested_qps`     the mean arrival rate asked for.
    `duration_s`        length of the measured window: from the end of the warm-up to the last scheduled arrival.
    `latencies`         all arrivals of the window: answers with latency from the *scheduled* send, refusals, failures.
    `answered_in_window` answers that came within the window, also those to queries of the warm-up.
    `lag`               by how much sends were late, waiting for a free connection included.
    `behind`            by how much they were taken up late, before any wait for a connection: the generator's own part.
    `cpu_share`         of one core, used by the generator; nan for a run too short to tell.
    `waited`            queries that found no connection free.
    `connections`       open at the end.
    `cut_short`         "" or why the run ended early: "interrupted", "the SLA is out of reach".
    `refusals`          time from the scheduled send to the refusal, of queries not accepted (408 is not one).
    `messages`          one message of the server for each code or kind among refusals and failures.
    `items_in_time`     items of the answers that came within the SLA's latency; of all answers without an SLA.
    `items_sent`        items of all queries, warm-up included.
    `remarks`           what else to know about the result, beside `left_queue`.
    `answered_of_warm_up` of `answered_in_window`, those to queries of the warm-up.
    `server_gone`       "" or why, after a run in which queries failed, not even one alone was answered.
    """

    requested_qps: float
    duration_s: float
    warm_up_s: float
    latencies: LatencyRecorder
    answered_in_window: int
    items_in_window: int
    lag: LatencyRecorder
    cpu_share: float
    waited: int
    connections: int
    cut_short: str
    messages: dict[str, str]
    refusals: LatencyRecorder = field(default_factory=LatencyRecorder)
    items_in_time: int = 0
    items_sent: int = 0
    remarks: tuple[str, ...] = ()
    behind: LatencyRecorder = field(default_factory=LatencyRecorder)
    answered_of_warm_up: int = 0
    server_gone: str = ""

    @property
    def sla(self) -> SlaTarget | None:
        """The target that the run was held to."""
        return self.latencies.sla

    @property
    def achieved_qps(self) -> float:
        """Queries per second that were due (the arrivals really drawn)."""
        return self.latencies.arrivals / self.duration_s if self.duration_s else math.nan

    @property
    def throughput_qps(self) -> float:
        """Answers per second in the measured window."""
        return self.answered_in_window / self.duration_s if self.duration_s else math.nan

    @property
    def throughput_items(self) -> float:
        """Items scored per second in the measured window."""
        return self.items_in_window / self.duration_s if self.duration_s else math.nan

    @property
    def goodput_items(self) -> float:
        """Items per second of the answers that came in time, whenever they came."""
        return self.items_in_time / self.duration_s if self.duration_s else math.nan

    @property
    def tail_latency_ms(self) -> float:
        """Latency at the SLA's percentile (p95 without an SLA), of the answers; nan without any."""
        return self.latencies.percentile_s(self._percentile) * 1e3

    @property
    def tail_latency_of_all_ms(self) -> float:
        """Within what so large a share of *all* arrivals was answered as the SLA's percentile says (95% without an
        SLA): infinite where too many were refused or failed, nan without any.

        At most the SLA's latency where that share was in time, and only there: the recorder counts exactly what was,
        but of many latencies it knows the bucket only, so that one in the SLA's bucket is told on its side of it.
        """
        arrivals, answers = self.latencies.arrivals, self.latencies.answers
        if not arrivals:
            return math.nan
        rank = nearest_rank(self._percentile, arrivals)
        if rank > answers:
            return math.inf
        latency_ms = self.latencies.percentile_s(100 * rank / answers) * 1e3
        if self.sla is None:
            return latency_ms
        bound_ms, in_time = self.sla.latency_ms, self.latencies.sla_attainment * 100 >= self.sla.percentile
        return min(latency_ms, bound_ms) if in_time else max(latency_ms, math.nextafter(bound_ms, math.inf))

    def latencies_of_all_ms(self) -> Floats:
        """Latencies that stand for those of all arrivals, float64, ascending: infinite where there was no answer."""
        samples = self.latencies.samples_s() * 1e3
        answers = self.latencies.answers
        if not answers:
            return np.full(self.latencies.arrivals, np.inf)
        unanswered = round((self.latencies.arrivals - answers) * samples.size / answers)
        return np.concatenate((samples, np.full(unanswered, np.inf)))

    @property
    def failures(self) -> Counter[str]:
        """How many queries failed for want of a server that answers or refuses, by kind."""
        return Counter({kind: n for kind, n in self.latencies.failed.items() if kind not in _NOT_THE_SERVERS})

    @property
    def failures_told(self) -> str:
        """That the server is gone, and how many queries failed, mostly by what; empty where none did."""
        if not self.failures:
            return ""
        kind, count = self.failures.most_common(1)[0]
        many = f"{self.failures.total():,} of {self.latencies.arrivals:,} queries failed"
        most = f"{many}: {kind}" if len(self.failures) == 1 else f"{many}, most of them ({count:,}): {kind}"
        if not self.server_gone:
            return most
        return f"the server is gone: after the run not even one query alone was answered ({self.server_gone}); {most}"

    @property
    def left_queue(self) -> str:
        """That more was answered than arrived, since the warm-up had left a queue; empty where that is not so.

        Nor where somebody broke the run off: what was under way then does not count as an arrival.
        """
        arrivals, answered = self.latencies.arrivals, self.answered_in_window
        by_chance = _CHANCE * math.sqrt(self.answered_of_warm_up)
        if self.cut_short or answered - arrivals <= max(MOST_EXCESS_SHARE * arrivals, by_chance):
            return ""
        return (
            f"more was answered than arrived: {self.answered_of_warm_up:,} of the {answered:,} answers were to queries "
            "of the warm-up, which had left a queue; in the long run a server answers no more than arrives"
        )

    @property
    def _percentile(self) -> float:
        return self.sla.percentile if self.sla is not None else 95.0

    @property
    def sla_met(self) -> bool | None:
        """Whether so large a share of *all* arrivals was answered in time as the SLA asks; None without an SLA."""
        if self.sla is None or not self.latencies.arrivals:
            return None
        return self.cut_short != FAILING and self.latencies.sla_attainment * 100 >= self.sla.percentile

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Why the generator, not the server, may have limited the run; empty if it did not."""
        found = []
        not_sent, arrivals = self.latencies.failed[NOT_SENT], self.latencies.arrivals
        if not_sent > MOST_NOT_SENT_SHARE * arrivals:
            text = f"{not_sent:,} of {arrivals:,} queries could not be sent in time"
            found.append(Limit("not sent", not_sent / arrivals, text))
        for kind, remedy in _WITHOUT_CONNECTION.items():
            if count := self.latencies.failed[kind]:
                text = f"the generator ran {kind}, and {count:,} of {arrivals:,} queries could not be sent: {remedy}"
                found.append(Limit(kind, count / arrivals, text))
        bound_s = MOST_LAG_S
        if self.sla is not None:
            bound_s = min(bound_s, self.sla.latency_s * MOST_LAG_SHARE_OF_SLA)
        # Queries that wait for a connection, or for one that fails, are late as well, but for want of a connection.
        lag = self.behind if self._waited_much or self.failures else self.lag
        late_s = lag.percentile_s(99)
        if late_s > bound_s:
            some = "1% of queries were" if lag.answers >= _FEW else f"one of {lag.answers} queries was"
            text = f"{some} sent over {_milliseconds(late_s)} late (bound {_milliseconds(bound_s)})"
            found.append(Limit("late", late_s, text))
        if self.cpu_share > MOST_CPU_SHARE:
            found.append(Limit("cpu", self.cpu_share, f"the generator used {self.cpu_share:.0%} of a core"))
        return tuple(found)

    @property
    def generator_limits(self) -> tuple[str, ...]:
        """`limits` in words."""
        return tuple(limit.text for limit in self.limits)

    @property
    def bottlenecks(self) -> tuple[str, ...]:
        """`generator_limits`, and whether the bound on connections was reached, which is mostly the server's doing."""
        if not self._waited_much:
            return self.generator_limits
        return (*self.generator_limits, f"{self._waits}: the server is overloaded, or the run needs more --connections")

    @property
    def connection_limit(self) -> Limit | None:
        """That a missed SLA may have been for want of connections: so many queries waited for one that the others
        alone would have met it. None otherwise, and where the server took longer than the SLA allows even so.

        That the server is overloaded looks the same in one run: see `LatencyBoundedThroughput.bottlenecks`.
        """
        arrivals, sla = self.latencies.arrivals, self.sla
        if sla is None or not arrivals or not self.waited or not self.server_s <= sla.latency_s:
            return None
        missed_otherwise = arrivals * (1 - self.latencies.sla_attainment) - self.waited
        if missed_otherwise > _ROOM_LEFT * (1 - sla.percentile / 100) * arrivals:
            return None
        text = f"{self._waits} while the server answered in time: more --connections may find more"
        return Limit("connections", self.waited / arrivals, text)

    @property
    def server_s(self) -> float:
        """Mean seconds from a query's send to its answer; nan without answers."""
        return max(self.latencies.summary().mean_s - self.lag.summary().mean_s, 0.0) if self.lag.answers else math.nan

    @property
    def _waits(self) -> str:
        return f"{self.waited:,} of {self.latencies.arrivals:,} queries waited for a free connection (gRPC: call)"

    @property
    def _waited_much(self) -> bool:
        return self.waited > MOST_WAITED_SHARE * self.latencies.arrivals

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what cannot be told is None."""
        lag, refusals = self.lag.summary(), self.refusals.summary()
        numbers = {
            "requested_qps": self.requested_qps,
            "achieved_qps": self.achieved_qps,
            "throughput_qps": self.throughput_qps,
            "throughput_items_per_s": self.throughput_items,
            "goodput_items_per_s": self.goodput_items,
            "duration_s": self.duration_s,
            "warm_up_s": self.warm_up_s,
            "tail_latency_ms": self.tail_latency_ms,
            "tail_latency_of_all_ms": self.tail_latency_of_all_ms,
            "refusal_p50_ms": refusals.p50_s * 1e3,
            "refusal_p99_ms": refusals.p99_s * 1e3,
            "lag_p50_ms": lag.p50_s * 1e3,
            "lag_p99_ms": lag.p99_s * 1e3,
            "cpu_share": self.cpu_share,
        }
        return {
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            **self.latencies.to_dict(),
            "sla_ms": None if self.sla is None else self.sla.latency_ms,
            "sla_percentile": None if self.sla is None else self.sla.percentile,
            "sla_met": self.sla_met,
            "waited_for_connection": self.waited,
            "connections": self.connections,
            "bottlenecks": list(self.bottlenecks),
            "remarks": [*self.remarks, *filter(None, [self.left_queue])],
            "answered_of_warm_up": self.answered_of_warm_up,
            "cut_short": self.cut_short,
            "server_gone": self.server_gone,
            "messages": self.messages,
            "histogram_ms": [[middle_s * 1e3, answers] for middle_s, answers in self.latencies.histogram()],
        }


def _milliseconds(seconds: float) -> str:
    """To two digits, as people write it: 4.7 ms, 320 ms, 12,000 ms."""
    return f"{float(f'{seconds * 1e3:.2g}'):,.12g} ms"


INTERRUPTED = "interrupted"
FAILING = "the SLA is out of reach"
