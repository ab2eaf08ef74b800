"""The open loop: queries go out when the schedule says so, whatever became of those before.

    arrivals, sizes, offsets (drawn block by block) -> due? -> sender.send -> on_sent: lag
                                                                           -> on_done: latency since the schedule

A closed loop, in which each client waits for its answer, sends less just when the server is slow, and so hides the
very latencies that it should measure ("coordinated omission"). Here a late answer delays nothing, and a late send
counts as latency and, being the generator's own fault, also as lag.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hebe.latency import LatencyRecorder
from hebe.load_generator.load_report import FAILING, INTERRUPTED, NOT_SENT, UNANSWERED, WITHDRAWN, LoadReport
from hebe.load_generator.open_loop.precise_timer import PreciseTimer
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.queries.schedule import Query, Schedule
from hebe.load_generator.queries.schedule import RunPlan as RunPlan  # who runs a plan makes one
from hebe.load_generator.senders.sender import Outcome, Sender

TICK_S = 0.05
MOST_SENDS_IN_A_ROW = 32
"""A generator that is behind sends at most so many queries before it looks at what has arrived."""

LEAST_CPU_WINDOW_S = 0.2
"""Over less, the share of a core says nothing: what ends a run at once is itself all of the work in it."""

MOST_BEHIND_S = 1.0
"""So long after the end of a run a generator that is behind may still send; what is left counts as failed."""

OUT_OF_TIME = frozenset(("408", "DEADLINE_EXCEEDED"))
"""Kinds of refusal that say that the query was accepted and its time ran out, which takes until then."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: seconds of the whole run, arrivals and answers of the measured window so far."""

    elapsed_s: float
    total_s: float
    arrivals: int
    answers: int


OnProgress = Callable[[Progress], None]


async def run_open_loop(
    plan: RunPlan,
    pool: QueryPool,
    sender: Sender,
    stop: asyncio.Event | None = None,
    on_progress: OnProgress | None = None,
) -> LoadReport:
    """Send the whole schedule of `plan` through `sender`, wait for the last answers, report.

    `stop` ends the run early; what was measured so far is reported. What had no answer by then counts as failed if it
    was due longer ago than the SLA allows (without an SLA: in any case), and else not at all.
    """
    run = _Run(plan, pool, sender)
    with garbage_set_aside():
        return await run.run(stop or asyncio.Event(), on_progress)


_set_aside = 0
"""How often, one within the other. The collector's own count of such objects is not 0 when Python 3.12 begins."""


@contextlib.contextmanager
def garbage_set_aside() -> Iterator[None]:
    """What exists now will exist at the end: collecting it again meanwhile would only stop the clock. Who makes many
    runs does so around all of them: to look through all there is takes half a second, what is new much less.
    """
    global _set_aside
    gc.collect()
    if not _set_aside:
        gc.freeze()
    _set_aside += 1
    try:
        yield
    finally:
        _set_aside -= 1
        if not _set_aside:
            gc.unfreeze()


class _Run:
    def __init__(self, plan: RunPlan, pool: QueryPool, sender: Sender) -> None:
        self._plan = plan
        self._sender = sender
        self._schedule = Schedule(plan, pool)
        self._queries = self._schedule.queries()
        self._next: Query | None = next(self._queries, None)
        self._index = 0
        self._in_flight: dict[int, tuple[float, int]] = {}
        self._unsent: set[int] = set()
        self._latencies = LatencyRecorder(plan.sla)
        self._refusals = LatencyRecorder()
        self._lag = LatencyRecorder()
        self._behind = LatencyRecorder()
        self._answered_in_window = 0
        self._answered_of_warm_up = 0
        self._items_in_window = 0
        self._items_in_time = 0
        self._in_time_s = plan.sla.latency_s if plan.sla is not None else math.inf
        self._waited = 0
        self._messages: dict[str, str] = {}
        self._window_end_s = math.inf
        self._cut_short = ""
        self._all_done = asyncio.Event()
        sender.on_sent, sender.on_done = self._sent, self._done

    async def run(self, stop: asyncio.Event, on_progress: OnProgress | None) -> LoadReport:
        plan = self._plan
        loop = asyncio.get_running_loop()
        self._timer = PreciseTimer(loop, self._send_due)
        self._start_s = time.monotonic() + 0.01
        self._window_start_s = self._start_s + plan.warm_up_s
        self._window_end_s = self._window_start_s + plan.duration_s
        cpu_s = wall_s = 0.0
        self._send_due()
        try:
            while not self._cut_short and not self._over(time.monotonic()):
                await _either(stop, TICK_S)
                now = time.monotonic()
                if not wall_s and now >= self._window_start_s:
                    wall_s, cpu_s = now, time.thread_time()
                if stop.is_set():
                    self._cut_short = INTERRUPTED
                elif plan.stop_when_failing and self._out_of_reach(now):
                    self._cut_short = FAILING
                self._give_up_overdue(now)
                if on_progress is not None:
                    on_progress(
                        Progress(
                            min(now - self._start_s, plan.total_s),
                            plan.total_s,
                            self._latencies.arrivals + self._in_window_and_in_flight(),
                            self._latencies.answers,
                        )
                    )
            now = time.monotonic()
            long_enough = wall_s and now - wall_s >= LEAST_CPU_WINDOW_S
            cpu_share = (time.thread_time() - cpu_s) / (now - wall_s) if long_enough else math.nan
        finally:
            self._timer.close()
        self._window_end_s = min(self._window_end_s, now)
        await self._end_schedule(now, stop)
        await self._drain(stop)
        return LoadReport(
            requested_qps=plan.rate_qps,
            duration_s=max(self._window_end_s - self._window_start_s, 0.0),
            warm_up_s=plan.warm_up_s,
            latencies=self._latencies,
            answered_in_window=self._answered_in_window,
            items_in_window=self._items_in_window,
            lag=self._lag,
            cpu_share=cpu_share,
            waited=self._waited,
            connections=self._sender.connections,
            cut_short=self._cut_short,
            messages=self._messages,
            refusals=self._refusals,
            items_in_time=self._items_in_time,
            items_sent=self._schedule.items_of(self._index),
            behind=self._behind,
            answered_of_warm_up=self._answered_of_warm_up,
        )

    # -- sending

    def _send_due(self) -> None:
        """Send what is due, and arm the timer for what is not."""
        for _ in range(MOST_SENDS_IN_A_ROW):
            query = self._next
            if query is None or self._cut_short:
                return
            due_s = self._start_s + query[0]
            behind_s = time.monotonic() - due_s
            if behind_s < 0:
                self._timer.arm(due_s)
                return
            if due_s >= self._window_start_s:
                self._behind.record(behind_s)
            index, self._index = self._index, self._index + 1
            self._next = next(self._queries, None)
            self._in_flight[index] = (due_s, query[1])
            self._unsent.add(index)
            self._sender.send(index, query[1], query[2])
            if index in self._unsent and self._sender.full and due_s >= self._window_start_s:
                self._waited += 1
        self._timer.arm(0.0)

    def _sent(self, index: int) -> None:
        self._unsent.discard(index)
        due_s = self._in_flight[index][0]
        if due_s >= self._window_start_s:
            self._lag.record(max(time.monotonic() - due_s, 0.0))

    def _done(self, index: int, outcome: Outcome, kind: str, message: str) -> None:
        now = time.monotonic()
        due_s, items = self._in_flight.pop(index)
        self._unsent.discard(index)
        if not self._in_flight:
            self._all_done.set()
        if outcome is Outcome.ANSWERED and self._window_start_s <= now <= self._window_end_s:
            self._answered_in_window += 1
            self._answered_of_warm_up += due_s < self._window_start_s
            self._items_in_window += items
        if due_s < self._window_start_s:
            return
        if kind:
            self._messages.setdefault(kind, message)
        if outcome is Outcome.ANSWERED:
            latency_s = max(now - due_s, 0.0)
            self._latencies.record(latency_s, items)
            if latency_s <= self._in_time_s:
                self._items_in_time += items
        elif outcome is Outcome.REFUSED:
            self._latencies.refuse(kind)
            if kind not in OUT_OF_TIME:
                self._refusals.record(max(now - due_s, 0.0))
        else:
            self._latencies.fail(kind)

    # -- ending

    def _in_window_and_in_flight(self) -> int:
        return sum(due_s >= self._window_start_s for due_s, _ in self._in_flight.values())

    def _over(self, now: float) -> bool:
        """Whether the window is; a generator that is behind gets a moment to send the rest."""
        return now >= self._window_end_s and (self._next is None or now >= self._window_end_s + MOST_BEHIND_S)

    async def _end_schedule(self, now: float, stop: asyncio.Event) -> None:
        """Send nothing any more. What was due and could not be sent counts as failed."""
        self._next = None
        if not self._cut_short:
            await self._fail_unsent(NOT_SENT, self._plan.total_s, stop)
        elif self._cut_short == INTERRUPTED:
            await self._fail_unsent(UNANSWERED, self._overdue_before(now) - self._start_s, stop)
            self._leave(list(self._unsent), now)
        else:
            for index in list(self._unsent):
                self._sender.give_up(index)
                self._done(index, Outcome.FAILED, WITHDRAWN, "")

    async def _fail_unsent(self, kind: str, before_s: float, stop: asyncio.Event) -> None:
        """Count as failed what the schedule has in the window, before `before_s` after the start, and was not sent."""
        interrupted = stop.is_set()
        for times in self._schedule.times_after(self._index):
            first, last = np.searchsorted(times, (self._plan.warm_up_s, before_s))
            if last > first:
                self._latencies.fail(kind, int(last - first))
            if last < len(times):
                return
            await asyncio.sleep(0)  # there may be millions, and somebody who has waited enough
            if stop.is_set() and not interrupted:
                self._cut_short = INTERRUPTED
                rest_s = before_s - max(float(times[-1]) if len(times) else 0.0, self._plan.warm_up_s)
                self._latencies.fail(kind, max(round(rest_s * self._plan.rate_qps), 0))  # about as many
                return

    def _overdue_before(self, now: float) -> float:
        """What was due before that and is not answered has missed its SLA, or there is none."""
        return now - (self._plan.sla.latency_s if self._plan.sla is not None else 0.0)

    def _leave(self, indices: list[int], now: float) -> None:
        """Wait for these no longer, since somebody interrupted: failed if overdue, else nobody knows."""
        overdue_before_s = self._overdue_before(now)
        for index in indices:
            self._sender.give_up(index)
            if self._in_flight[index][0] <= overdue_before_s:
                self._done(index, Outcome.FAILED, UNANSWERED, "")
            else:
                self._unsent.discard(index)
                del self._in_flight[index]

    def _out_of_reach(self, now: float) -> bool:
        """Whether more queries have missed the SLA than may miss it in the whole run."""
        sla = self._plan.sla
        if sla is None or now < self._window_start_s:
            return False
        expected = self._plan.rate_qps * self._plan.duration_s
        may_miss = (1 - sla.percentile / 100) * (expected + 3 * math.sqrt(expected))
        recorded = self._latencies
        missed = recorded.arrivals * (1 - recorded.sla_attainment) if recorded.arrivals else 0.0
        missed += sum(due_s >= self._window_start_s for _, due_s in self._due_before(now - sla.latency_s))
        return missed > may_miss + 1

    def _due_before(self, bound_s: float) -> Iterator[tuple[int, float]]:
        """Index and time of the queries in flight that were due before `bound_s`; they stand in that order."""
        for index, (due_s, _) in self._in_flight.items():
            if due_s >= bound_s:
                return
            yield index, due_s

    def _give_up_overdue(self, now: float) -> None:
        for index, _ in list(self._due_before(now - self._plan.answer_timeout_s)):
            self._sender.give_up(index)
            self._done(index, Outcome.FAILED, f"no answer in {self._plan.answer_timeout_s:g} s", "")

    async def _drain(self, stop: asyncio.Event) -> None:
        """Wait for the answers to what was sent; once interrupted, only for a moment, and send nothing any more."""
        while self._in_flight:
            self._all_done.clear()
            if interrupted := stop.is_set():
                self._cut_short = self._cut_short or INTERRUPTED
                # Before any that were sent: in the place of each of those a sender takes the next of its line.
                self._leave(list(self._unsent), time.monotonic())
            try:
                async with asyncio.timeout(0.5 if interrupted else TICK_S):
                    await self._all_done.wait()
            except TimeoutError:
                if interrupted:
                    break
            self._give_up_overdue(time.monotonic())
        self._leave(list(self._in_flight), time.monotonic())


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
