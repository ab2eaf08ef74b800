"""Corrects the profiles that models run by, while they serve: by their counters and a power meter, every ten seconds.

Nothing of it is on a query's way. A model's window goes on until it holds enough queries for its percentile. One in
which other models were asked, a model was loaded, workers were missing, or the server was split anew says nothing of
the model alone and as the profile says, and is dropped. One in which the host of this virtual machine gave its cores to
others, or a tier of the tables could not be asked, is marked as disturbed: it does not count against the profile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from hebe.machine.meters.power import PowerMeter, PowerUse
from hebe.machine.meters.processor import ProcessorMeter, ProcessorMeterError
from hebe.serving.engine.driver import clock
from hebe.serving.hosting.profile_in_use import ProfileInUse, WindowCounter

if TYPE_CHECKING:
    from hebe.serving.hosting.hosted_model import HostedModel
    from hebe.serving.hosting.model_host import ModelHost
    from hebe.serving.statistics import Statistics

log = structlog.get_logger("hebe.profile")

EVERY_S = 10.0
"""Between looks at the counters."""

LONGEST_S = 60.0
"""A window that has too few queries after so long is dropped: the load has changed meanwhile."""

KEEP_EVERY_S = 60.0
"""Corrections are written no more often."""

OTHERS_SHARE = 0.01
"""Queries of other models that disturb a window, over its own."""

MOST_DENIED = 0.05
"""Of the cores' time between two looks: where the host gave more to others, queries may be late for that."""


def now_text() -> str:
    """The time of day, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class _Window:
    """What is counted since it began, and what was so then."""

    counter: WindowCounter
    queries_of_others: int
    splits: int


class ProfileCorrection:
    """Corrects the profiles of the models of `host`, whose queries `statistics` counts, from `start` to `close`."""

    def __init__(
        self,
        host: ModelHost,
        statistics: Statistics,
        meter: PowerMeter,
        *,
        processors: ProcessorMeter | None = None,
        every_s: float = EVERY_S,
        time_s: Callable[[], float] = clock,
        time_of_day: Callable[[], str] = now_text,
    ) -> None:
        self._host, self._statistics, self._meter = host, statistics, meter
        self._every_s, self._time_s, self._time_of_day = every_s, time_s, time_of_day
        self._processors = processors or _processors_of(host)
        self._metered = False
        self._windows: dict[str, _Window] = {}
        self._kept_s = -math.inf
        self._told: dict[str, str] = {}
        self._starting: asyncio.Future[None] | None = None
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; on the event loop."""
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._meter.start))
        self._loop = asyncio.ensure_future(self._run(self._starting))

    async def close(self) -> None:
        """End, and write what is not written yet."""
        if self._loop is not None and self._starting is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop, self._starting})  # a meter that is starting could not be closed
            self._loop = self._starting = None
        await asyncio.to_thread(self._meter.close)
        await self._keep()

    async def _run(self, starting: asyncio.Future[None]) -> None:
        try:
            await asyncio.shield(starting)
            self._metered = True
        except Exception as fault:
            log.warning("power cannot be measured: the profile's stays as it is", reason=str(fault))
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except Exception:
                log.exception("a profile could not be corrected")

    async def look(self) -> None:
        """Look at the counters and the meter once."""
        power, denied = await self._power(), await self._denied_share() > MOST_DENIED
        now_s = self._time_s()
        for model in self._host.hosted:
            if model.profile is not None:
                self._look_at(model, model.profile, power, now_s, denied=denied)
            else:
                self._windows.pop(model.spec.name, None)
        if now_s - self._kept_s >= KEEP_EVERY_S and any(profile.unkept for profile in self._host.profiles):
            self._kept_s = now_s
            await self._keep()

    def _look_at(
        self, model: HostedModel, profile: ProfileInUse, power: PowerUse | None, now_s: float, *, denied: bool
    ) -> None:
        name = model.spec.name
        counted = self._statistics.of(name, model.version, model.sla_s)
        others = sum(each.success.count for each in self._statistics.find() if each.name != name)
        worked_s = model.worked_s
        begun = _Window(WindowCounter(counted, model.percentile, now_s, worked_s), others, model.splits)
        before = None if self._host.loading or not model.ready else self._windows.get(name)
        if before is None or before.counter.counted is not counted or before.splits != model.splits:
            self._windows[name] = begun
            return
        if power is not None:
            before.counter.drew(power.peak.watts, estimated=power.peak.estimated)
        before.counter.disturbed |= denied or bool(model.degraded)
        load = before.counter.window(now_s, worked_s)
        # Fewer than before: those of a version that has gone count no more.
        if not 0 <= others - before.queries_of_others <= OTHERS_SHARE * load.queries:
            self._windows[name] = begun
        elif load.tells:
            if profile.see(load, self._time_of_day()) and profile.measured is not None:
                told = profile.measured
                log.info("profile corrected", model=name, qps=round(told.qps, 3), watts=round(told.power_watts, 3))
            self._windows[name] = begun
        elif load.seconds >= LONGEST_S:
            profile.saw_too_few()
            self._windows[name] = begun

    async def _power(self) -> PowerUse | None:
        if not self._metered:
            return None
        try:
            return await asyncio.to_thread(self._meter.read)
        except Exception as fault:
            self._metered = False
            log.warning("power cannot be measured any more: the profile's stays as it is", reason=str(fault))
            return None

    async def _denied_share(self) -> float:
        """Of the cores' time since the last look, what the host gave to others; 0 where that is not told."""
        if self._processors is None:
            return 0.0
        try:
            return (await asyncio.to_thread(self._processors.read)).steal
        except ProcessorMeterError:
            return 0.0

    async def _keep(self) -> None:
        for profile in self._host.profiles:
            model, reason = profile.efficiency.model, ""
            try:
                await asyncio.to_thread(profile.keep)
            except OSError as fault:
                reason = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
            except ValueError as fault:
                reason = str(fault)
            if reason and reason != self._told.get(model):
                log.warning("what was measured cannot be kept in the profile", model=model, reason=reason)
            self._told[model] = reason


def _processors_of(host: ModelHost) -> ProcessorMeter | None:
    try:
        return ProcessorMeter(host.cores)
    except ProcessorMeterError:
        return None
