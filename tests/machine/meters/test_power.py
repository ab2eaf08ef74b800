from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import pytest

from hebe.machine.meters import power as power_meter
from hebe.machine.meters import rapl
from hebe.machine.meters.power import PowerMeter, PowerMeterError
from hebe.machine.meters.processor import ProcessorUse
from hebe.spec import ServerSpec

SERVER = ServerSpec("t", cores=4, memory_bytes=1 << 30, idle_power_watts=20.0, peak_power_watts=100.0)
WAIT_S = 60.0


class Machine:
    """What the meter reads of a machine, and its clock: each sample takes so many seconds and joules, the last of the
    list for ever."""

    def __init__(self, monkeypatch):
        self.seconds, self.package, self.dram, self.gpu, self.busy = [1.0], [50.0], [5.0], [None], [0.5]
        self.now_s, self.sleeps, self.closed = 1000.0, 0, 0
        self.counts = {}
        machine = self

        class Rapl:
            package_unreadable = dram_unreadable = ""

            def __init__(self, _root):
                self.joules = None

            def read(self):
                if self.joules is None:
                    self.joules = {"package": 0.0, "dram": 0.0}
                else:
                    for part in self.joules:
                        step = machine.next(part)
                        self.joules[part] = None if step is None else (self.joules[part] or 0.0) + step
                if self.joules["package"] is None:
                    self.give_up_packages("gone")
                return None if self.package_unreadable else self.joules["package"], self.joules["dram"]

            def give_up_packages(self, reason):
                self.package_unreadable = self.package_unreadable or reason

        class Gpus:
            unreadable = "no GPU here"

            def read_watts(self):
                return machine.next("gpu")

            def close(self):
                machine.closed += 1

        class Processors:
            def __init__(self, cores, _proc):
                self.cores = cores

            def read(self):
                share = machine.next("busy")
                return ProcessorUse(0.0, share, 0.0, 0.0, 100)

        monkeypatch.setattr(power_meter, "RaplCounters", Rapl)
        monkeypatch.setattr(power_meter, "GpuPower", Gpus)
        monkeypatch.setattr(power_meter, "ProcessorMeter", Processors)
        monkeypatch.setattr(power_meter, "time", SimpleNamespace(monotonic=self.monotonic, sleep=self.sleep))

    def next(self, what):
        values = getattr(self, what)
        at = self.counts.get(what, 0)
        self.counts[what] = at + 1
        return values[min(at, len(values) - 1)]

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.sleeps += 1
        self.now_s += seconds


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.fixture
def by_hand(machine, monkeypatch):
    """A meter whose samples the test takes: each call lets a number of seconds go by."""
    monkeypatch.setattr(PowerMeter, "_run", lambda _self: None)
    meter = PowerMeter(server=SERVER, cores=range(SERVER.cores))
    meter.start()

    def sample(seconds):
        machine.now_s += seconds
        meter._sample()

    yield meter, sample
    meter.close()


def test_what_is_measured_is_a_mean_over_time_and_the_highest_sample(machine, by_hand):
    meter, sample = by_hand
    machine.package, machine.dram = [50.0, 400.0, 30.0, 90.0], [5.0, 40.0, 3.0, 9.0]
    sample(1.0)
    sample(4.0)
    machine.now_s += 1.0
    used = meter.read()
    assert used.seconds == pytest.approx(6.0)
    assert used.mean.package_watts == pytest.approx(480 / 6)
    assert used.mean.dram_watts == pytest.approx(48 / 6)
    assert used.mean.watts == pytest.approx(528 / 6)
    assert (used.mean.gpu_watts, used.mean.estimated, used.mean.source) == (None, False, "RAPL")
    assert used.peak.watts == pytest.approx(110.0)
    machine.now_s += 3.0
    used = meter.read()
    assert (used.seconds, used.mean.watts) == (pytest.approx(3.0), pytest.approx(33.0))
    assert used.peak == used.mean


def test_gpus_are_part_of_it(machine, by_hand):
    meter, sample = by_hand
    machine.gpu = [100.0, 300.0]
    sample(1.0)
    machine.now_s += 1.0
    used = meter.read()
    assert (used.mean.gpu_watts, used.mean.watts) == (pytest.approx(200.0), pytest.approx(255.0))
    assert (used.peak.watts, used.mean.source) == (pytest.approx(355.0), "RAPL and NVML")
    machine.gpu = [100.0, None]
    machine.counts["gpu"] = 0
    sample(1.0)
    machine.now_s += 1.0
    used = meter.read()
    assert used.mean.gpu_watts is None, "of a part of the time it would not be the interval's"
    assert used.mean.source == "RAPL and NVML; then RAPL"


def test_memory_that_is_not_counted_is_said_to_be_left_out(machine, by_hand):
    meter, _ = by_hand
    machine.dram = [None]
    machine.now_s += 2.0
    used = meter.read().mean
    assert (used.watts, used.dram_watts) == (25.0, None)
    assert (used.estimated, used.source) == (False, "RAPL without memory")


def test_packages_that_cannot_be_read_any_more_are_estimated_from_then_on(machine, by_hand):
    meter, sample = by_hand
    machine.package, machine.gpu = [80.0, None], [10.0]
    sample(1.0)
    machine.now_s += 1.0
    used = meter.read()
    assert used.mean.estimated
    assert used.mean.package_watts is None
    assert used.mean.watts == pytest.approx((80 + 5 + 10 + 20 + 80 * 0.5 + 10) / 2)
    assert used.mean.source == "RAPL and NVML; then CPU utilization and server type t (20 to 100 W) and NVML"
    assert not used.peak.estimated
    assert used.peak.watts == pytest.approx(95.0)
    assert "power of packages cannot be read: gone" in meter.unreadable


def test_what_was_not_stated_is_said_to_be_of_the_server_type_alone(machine, monkeypatch):
    monkeypatch.setattr(PowerMeter, "_run", lambda _self: None)
    monkeypatch.setattr(power_meter, "this_server", lambda _cores: SERVER)
    machine.package = [None]
    with PowerMeter(cores=range(SERVER.cores)) as meter:
        machine.now_s += 1.0
        assert meter.read().mean.source == "CPU utilization and server type t"


@pytest.mark.parametrize(("busy", "watts"), [(0.0, 20.0), (0.25, 40.0), (1.0, 100.0)])
def test_a_counter_that_stands_still_is_not_believed(machine, by_hand, busy, watts):
    meter, sample = by_hand
    machine.package, machine.busy = [0.0, 77.0], [busy]
    sample(0.2)
    sample(0.2)
    used = meter.read()
    assert (used.mean.estimated, used.mean.watts) == (True, pytest.approx(watts))
    assert any("stands still" in line for line in meter.unreadable)


@pytest.mark.parametrize(("cores", "watts"), [(2, 40.0), (16, 100.0)])
def test_the_estimate_is_of_the_servers_cores_not_of_those_that_may_be_used(machine, monkeypatch, cores, watts):
    """Half of two is one of the server's four; half of sixteen are all of those that a control group lets it use."""
    monkeypatch.setattr(PowerMeter, "_run", lambda _self: None)
    machine.package = [None]
    with PowerMeter(server=SERVER, cores=range(cores)) as meter:
        machine.now_s += 1.0
        assert meter.read().mean.watts == pytest.approx(watts)


def test_a_leftover_has_no_peak_of_its_own(machine, by_hand):
    meter, sample = by_hand
    machine.package, machine.dram = [10.0, 10.0], [None]
    sample(0.2)
    machine.now_s += 0.06
    used = meter.read()
    assert used.mean.watts == pytest.approx(20 / 0.26)
    assert used.peak.watts == used.mean.watts, "of 50 W in 0.2 s, and then 167 W in 0.06 s"


def test_a_reading_at_once_waits_for_the_counters(machine, by_hand):
    meter, _ = by_hand
    assert meter.read().seconds == pytest.approx(0.05)
    assert machine.sleeps == 1


@pytest.mark.usefixtures("by_hand")
def test_a_server_that_states_no_power_needs_rapl(machine, tmp_path):
    bare = ServerSpec("bare", cores=1, memory_bytes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(power_meter.RaplCounters, "package_unreadable", "no such file")
        meter = PowerMeter(tmp_path, bare, cores=(0,))
        with pytest.raises(PowerMeterError, match=r"no such file; and server type bare states no power.*idle_power"):
            meter.start()
        assert machine.closed == 1
    meter = PowerMeter(tmp_path, bare, cores=(0,))
    machine.package = [None]
    meter.start()
    machine.now_s += 1
    with pytest.raises(PowerMeterError, match=r"cannot be measured any more: .*states no power"):
        meter.read()
    meter.close()


def test_what_was_left_can_be_read_once_after_closing(machine, by_hand):
    meter, _ = by_hand
    machine.now_s += 2.0
    meter.close()
    meter.close()
    assert machine.closed == 1
    machine.now_s += 99.0
    assert meter.read().seconds == pytest.approx(2.0)
    with pytest.raises(PowerMeterError, match="not started, or has been read since"):
        meter.read()


def test_a_meter_that_was_not_started_says_so():
    meter = PowerMeter(server=SERVER)
    assert meter.unreadable == ()
    with pytest.raises(PowerMeterError, match="not started"):
        meter.read()
    with pytest.raises(ValueError, match=r"sample_s is 0.01: must be at least 0.05"):
        PowerMeter(sample_s=0.01)


@pytest.fixture
def powercap(tmp_path):
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "name").write_text("package-0\n")
    (tmp_path / "intel-rapl:0" / "max_energy_range_uj").write_text("262143328850\n")
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("0\n")
    return tmp_path


@pytest.fixture
def joules_read(monkeypatch):
    """What the counter said each time it was read: a joule more than before, however long that took."""
    read = []

    def number(path):
        if path.name != "energy_uj":
            return int(path.read_text())
        read.append(len(read))
        return read[-1] * 1_000_000

    monkeypatch.setattr(rapl, "_number", number)
    return read


def wait_until(condition):
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_thread_of_its_own_samples_until_it_is_closed(powercap, joules_read, threads_begun):
    """On this machine, whatever it can read beside a powercap of the test's own."""
    with PowerMeter(powercap, SERVER, sample_s=0.05) as meter:
        assert threads_begun() == ["hebe-power-meter"]
        wait_until(lambda: meter._tally.samples >= 3)
        used = meter.read()
        assert used.mean.package_watts is not None
        joules = used.mean.package_watts * used.seconds
        assert joules == pytest.approx(round(joules))
        assert 4 <= round(joules) < len(joules_read), "one of each sample, the last one taken by reading"
        assert used.peak.watts >= used.mean.watts > 0
        assert not used.mean.estimated
    assert threads_begun() == []


def test_this_machine_is_metered_without_being_told_anything(threads_begun):
    with PowerMeter(sample_s=0.05) as meter:
        wait_until(lambda: meter._tally.samples)
        used = meter.read()
    assert used.peak.watts >= used.mean.watts > 0
    assert used.mean.estimated == (used.mean.package_watts is None)
    assert threads_begun() == []


def test_an_interrupt_ends_the_thread(powercap, threads_begun):
    def interrupted() -> None:
        with PowerMeter(powercap, SERVER, sample_s=0.05) as meter:
            wait_until(lambda: meter._tally.samples)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threads_begun() == []
