"""The tuple is corrected by counters and a meter that the test moves, on a clock of its own."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from hebe.machine.meters.power import PowerMeterError, PowerReading, PowerUse
from hebe.machine.meters.processor import ProcessorMeterError, ProcessorUse
from hebe.scheduling.events import Stage
from hebe.serving.hosting.profile_correction import ProfileCorrection
from hebe.serving.hosting.profile_in_use import ProfileInUse
from hebe.serving.statistics import Statistics
from tests.serving.profiled import TUPLE, served
from tests.serving.tier_states import tiers_state

from .test_profile_in_use import answer


class Meter:
    def __init__(self):
        self.watts, self.estimated = 40.0, True
        self.fault = None
        self.began, self.ended = 0, 0

    def start(self):
        self.began += 1
        if self.fault is not None:
            raise self.fault

    def read(self):
        if self.fault is not None:
            raise self.fault
        reading = PowerReading(self.watts, None, None, None, self.estimated, "the test")
        return PowerUse(reading, reading, 10.0)

    def close(self):
        self.ended += 1


class Processors:
    steal, fault = 0.0, None

    def read(self):
        if self.fault is not None:
            raise self.fault
        return ProcessorUse(0.5, 0.5, 0.5, self.steal, 100)


@dataclass
class Host:
    hosted: tuple = ()
    loading: bool = False

    @property
    def profiles(self):
        return tuple(model.profile for model in self.hosted if model.profile is not None)


@dataclass
class Serving:
    """`ranker` by its profile and `lone` without one; `after` lets time pass, with queries."""

    host: Host
    meter: Meter
    processors: Processors = field(default_factory=Processors)
    statistics: Statistics = field(default_factory=Statistics)
    now_s: float = 0.0
    kept: list = field(default_factory=list)
    fault: Exception | None = None

    def __post_init__(self):
        profile = ProfileInUse(served(keep=self.keep))
        self.ranker, self.lone = self.host.hosted
        self.ranker.profile = profile
        self.correction = ProfileCorrection(
            self.host,
            self.statistics,
            self.meter,
            processors=self.processors,
            every_s=0.001,
            time_s=lambda: self.now_s,
            time_of_day=lambda: f"at {self.now_s:g}",
        )

    def keep(self, measured, at):
        if self.fault is not None:
            raise self.fault
        self.kept.append((measured.qps, measured.power_watts, at))

    @property
    def profile(self):
        return self.ranker.profile

    def count(self, in_time, late=0, of=None):
        model = of or self.ranker
        counted = self.statistics.of(model.spec.name, model.version, model.sla_s)
        answer(counted, model.sla_s / 2, in_time)
        answer(counted, model.sla_s * 2, late)

    async def after(self, seconds, in_time=0, late=0, busy=0.2):
        self.now_s += seconds
        worked_s = self.ranker.worked_s.get((0, Stage.WHOLE), 0.0) + busy * seconds
        self.ranker.worked_s = {(0, Stage.WHOLE): worked_s}
        self.count(in_time, late)
        await self.correction.look()


@pytest.fixture
def serving(fake_host):
    return Serving(Host((fake_host.models["ranker"], fake_host.models["lone"])), Meter())


async def begin(serving):
    """The first look only begins a window."""
    serving.correction._metered = True
    await serving.after(10.0, 5000)
    assert serving.profile.window is None


async def test_windows_correct_the_tuple(serving):
    await begin(serving)
    await serving.after(10.0, 1500)
    assert serving.profile.measured == replace(TUPLE, power_watts=40.0)
    assert serving.profile.measured_at == "at 20"
    for _ in range(17):
        await serving.after(10.0, 1500)
    assert serving.profile.measured == replace(TUPLE, qps=150.0, power_watts=40.0)
    assert serving.profile.measured_at == "at 190"
    assert serving.profile.efficiency == TUPLE
    for _ in range(18):
        await serving.after(10.0, 900, 900, busy=0.9)
    assert serving.profile.measured.qps == 150.0  # more came, too late
    for _ in range(18):
        await serving.after(10.0, 500, 600, busy=0.9)
    assert serving.profile.measured.qps == pytest.approx(110.0)


async def late_for_minutes(serving, seconds=180.0, busy=0.9):
    await begin(serving)
    for _ in range(round(seconds / 10)):
        await serving.after(10.0, 100, 400, busy)


async def test_a_server_that_is_too_slow_is_told_by_its_busy_workers(serving):
    await late_for_minutes(serving)
    assert serving.profile.measured.qps == 50.0
    assert serving.profile.window.busy_share == pytest.approx(0.9)


@pytest.mark.parametrize("why", ["idle", "for some tens of seconds", "denied", "a tier is left alone"])
async def test_what_is_late_for_another_reason_changes_nothing(serving, why):
    serving.processors.steal = 0.2 if why == "denied" else 0.0
    if why == "a tier is left alone":
        serving.ranker.tiers = tiers_state(redis=False)
    await late_for_minutes(serving, 30.0 if "tens" in why else 180.0, 0.2 if why == "idle" else 0.9)
    assert serving.profile.measured is None
    assert serving.profile.window.disturbed == (why in ("denied", "a tier is left alone"))


async def test_where_the_host_does_not_tell_what_it_denies_nothing_is_disturbed(serving):
    serving.processors.fault = ProcessorMeterError("no /proc")
    await late_for_minutes(serving)
    assert serving.profile.measured.qps == 50.0


async def test_minutes_with_a_pause_are_none(serving):
    await late_for_minutes(serving, 120.0)
    await serving.after(60.0, 10)
    for _ in range(12):
        await serving.after(10.0, 100, 400, 0.9)
    assert serving.profile.measured is None


async def test_a_window_in_which_the_server_was_split_away_and_back_says_nothing(serving):
    await begin(serving)
    serving.ranker.splits += 2
    await serving.after(10.0, 1500)
    assert serving.profile.window is None
    await serving.after(10.0, 1200)
    assert serving.profile.window.qps == 120.0


async def test_a_window_goes_on_until_it_has_queries_enough(serving):
    await begin(serving)
    serving.meter.watts = 45.0
    await serving.after(10.0, 300)
    assert serving.profile.window is None
    serving.meter.watts = 35.0
    await serving.after(10.0, 300)
    window = serving.profile.window
    assert (window.seconds, window.queries, window.peak_watts) == (20.0, 600, 45.0)


async def test_one_that_never_has_enough_is_dropped(serving):
    await begin(serving)
    for _ in range(6):
        await serving.after(10.0, 60)
    await serving.after(10.0, 60)
    assert serving.profile.window is None


@pytest.mark.parametrize("disturbed", ["others", "others that go", "loading", "not ready", "another version"])
async def test_what_is_not_of_the_model_alone_corrects_nothing(serving, disturbed):
    if disturbed == "others that go":
        serving.count(100, of=serving.lone)
    await begin(serving)
    match disturbed:
        case "others that go":
            serving.count(50, of=serving.lone)
            serving.statistics.forget(serving.lone.spec.name, serving.lone.version)
        case "others":
            serving.count(100, of=serving.lone)
        case "loading":
            serving.host.loading = True
        case "not ready":
            serving.ranker.trouble = "1 of its workers have ended"
        case "another version":
            serving.ranker.version = 2
    await serving.after(10.0, 5000)
    assert serving.profile.window is None
    serving.host.loading, serving.ranker.trouble = False, ""
    if disturbed in ("loading", "not ready"):
        await serving.after(10.0, 5000)
        assert serving.profile.window.qps == 500.0


async def test_corrections_are_kept_once_a_minute_and_at_the_end(serving):
    await begin(serving)
    await serving.after(10.0, 1500)
    assert serving.kept == [(100.0, 40.0, "at 20")]
    serving.meter.watts = 45.0
    await serving.after(10.0, 1600)
    serving.meter.watts = 50.0
    await serving.after(49.0, 9000)
    assert len(serving.kept) == 1
    await serving.after(1.0)
    assert serving.kept[1:] == [(100.0, 50.0, "at 79")]
    serving.meter.watts = 55.0
    await serving.after(10.0, 2500)
    await serving.correction.close()
    assert serving.kept[2:] == [(100.0, 55.0, "at 90")]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (OSError(28, "No space left on device", "ranker.json"), "ranker.json: No space left on device"),
        (ValueError("ranker.json holds another profile by now"), "holds another profile"),
    ],
)
async def test_a_correction_that_cannot_be_kept_is_a_warning_told_once(serving, fault, told):
    serving.fault = fault
    await begin(serving)
    with capture_logs() as logs:
        await serving.after(10.0, 1500)
        serving.meter.watts = 45.0
        await serving.after(60.0, 18000)
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(warnings) == 1
    assert told in warnings[0]["reason"]
    serving.fault = None
    await serving.correction.close()
    assert serving.kept == [(100.0, 45.0, "at 80")]


async def test_without_a_meter_throughput_is_corrected_all_the_same(serving):
    await begin(serving)
    serving.meter.fault = PowerMeterError("the counter is gone")
    with capture_logs() as logs:
        for _ in range(18):
            await serving.after(10.0, 1500)
    assert [entry["reason"] for entry in logs if entry["log_level"] == "warning"] == ["the counter is gone"]
    assert (serving.profile.measured.qps, serving.profile.measured.power_watts) == (150.0, 30.0)
    assert serving.profile.window.peak_watts is None


@pytest.mark.parametrize("fault", [None, PowerMeterError("nothing to read")])
async def test_it_looks_by_itself_until_it_is_closed(serving, fault):
    serving.meter.fault = fault
    serving.correction.start()
    serving.now_s = 10.0
    async with asyncio.timeout(30):
        while serving.profile.measured is None:
            serving.now_s += 1.0
            serving.count(200)
            await asyncio.sleep(0.001)
    await serving.correction.close()
    assert (serving.meter.began, serving.meter.ended) == (1, 1)
    assert serving.kept
    assert (serving.profile.window.peak_watts is None) == (fault is not None)


async def test_it_may_be_closed_before_it_has_looked(serving):
    serving.correction.start()
    await serving.correction.close()
    await serving.correction.close()
    assert serving.meter.began == 1
