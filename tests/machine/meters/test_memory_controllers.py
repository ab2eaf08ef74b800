from __future__ import annotations

import errno
import os
import struct
import time

import pytest

from hebe.machine.meters.memory_controllers import ControllerEvent, MemoryControllers, controller_events, perf_counter

CPU_CLOCK = ControllerEvent("software/cpu-clock", 1, 0, (0,), 1.0)
"""What every kernel counts, in nanoseconds: PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK."""


def device(root, name, device_type, cores, events, **formats):
    """As the kernel shows it."""
    place = root / name
    (place / "events").mkdir(parents=True)
    (place / "format").mkdir()
    (place / "type").write_text(f"{device_type}\n")
    (place / "cpumask").write_text(f"{cores}\n")
    for event, terms in events.items():
        (place / "events" / event).write_text(terms)
    for field, bits in (formats or {"event": "config:0-7", "umask": "config:8-15"}).items():
        (place / "format" / field).write_text(f"{bits}\n")


def cas(direction, terms):
    name = f"cas_count_{direction}"
    return {name: terms, f"{name}.scale": "6.103515625e-5\n", f"{name}.unit": "MiB\n"}


class Counters:
    """Answers of a kernel: what each counter tells, one reading after the other."""

    def __init__(self):
        self.ends, self.opened = {}, []

    def open(self, event, core):
        read_end, self.ends[event.name, core] = os.pipe()
        self.opened.append(read_end)
        return read_end

    def tell(self, name, core, count, enabled_ns=100, running_ns=100):
        os.write(self.ends[name, core], struct.pack("QQQ", count, enabled_ns, running_ns))

    def open_ones(self):
        """Which of them are still open."""
        still = []
        for descriptor in self.opened:
            try:
                os.fstat(descriptor)
            except OSError:
                continue
            still.append(descriptor)
        return still


@pytest.fixture
def counters():
    made = Counters()
    yield made
    for end in made.ends.values():
        os.close(end)


def test_what_intels_controllers_count(tmp_path):
    events = cas("read", "event=0x05,umask=0xcf\n") | cas("write", "event=0x05,umask=0xf0\n")
    device(tmp_path, "uncore_imc_0", 14, "0,56", events | {"clockticks": "event=0x01,umask=0x00"})
    device(tmp_path, "uncore_imc_1", 15, "0,56", cas("read_sch0", "event=0x05,umask=0xcf"))
    device(tmp_path, "uncore_imc_free_running_0", 30, "0", {"data_read": "event=0xff,umask=0x20"})
    device(tmp_path, "cpu", 4, "0", {"cas_count_read": "event=0x05"})
    assert controller_events(tmp_path) == [
        ControllerEvent("uncore_imc_0/cas_count_read", 14, 0xCF05, (0, 56), 64.0),
        ControllerEvent("uncore_imc_0/cas_count_write", 14, 0xF005, (0, 56), 64.0),
        ControllerEvent("uncore_imc_1/cas_count_read_sch0", 15, 0xCF05, (0, 56), 64.0),
    ]


def test_what_counts_of_itself_is_taken_where_nothing_else_is(tmp_path):
    events = {"data_read": "event=0xff,umask=0x20", "data_write": "event=0xff,umask=0x30", "data_total": "event=0xff"}
    device(tmp_path, "uncore_imc_free_running_0", 30, "0", events)
    named = [(event.name, event.config) for event in controller_events(tmp_path)]
    assert named == [("uncore_imc_free_running_0/data_read", 0x20FF), ("uncore_imc_free_running_0/data_write", 0x30FF)]


def test_amds_controllers_name_no_event(tmp_path):
    device(tmp_path, "amd_umc_1", 22, "64-65", {}, event="config:0-7", rdwrmask="config:8-9")
    assert controller_events(tmp_path) == [ControllerEvent("amd_umc_1/CAS commands", 22, 0x0A, (64, 65), 64.0)]


def test_a_field_may_lie_in_several_places(tmp_path):
    device(
        tmp_path, "uncore_imc", 9, "0", {"data_reads": "event=0x1a5,edge"}, event="config:0-7,32-35", edge="config:18"
    )
    assert [event.config for event in controller_events(tmp_path)] == [0x1_0004_00A5]


@pytest.mark.parametrize(
    ("terms", "formats", "said"),
    [
        ("event=0x105", {"event": "config:0-7"}, "does not fit"),
        ("event=0x05", {"event": "config1:0-7"}, "only fields of config"),
        ("event=0x05", {"umask": "config:8-15"}, "format/event: No such file"),
        ("event=five", {"event": "config:0-7"}, "invalid literal"),
    ],
)
def test_an_event_that_cannot_be_understood(tmp_path, terms, formats, said):
    device(tmp_path, "uncore_imc_0", 14, "0", {"cas_count_read": terms}, **formats)
    controllers = MemoryControllers(tmp_path)
    assert controllers.counts() is None
    assert said in controllers.unreadable


def test_an_unknown_unit(tmp_path):
    events = {"data_read": "event=0x01", "data_read.scale": "1", "data_read.unit": "Joules"}
    device(tmp_path, "uncore_imc", 14, "0", events)
    assert "'Joules': not a unit" in MemoryControllers(tmp_path).unreadable


def test_bytes_by_counter(tmp_path, counters):
    device(tmp_path, "uncore_imc_0", 14, "0,56", cas("read", "event=0x04"))
    controllers = MemoryControllers(tmp_path, counters.open)
    assert controllers.unreadable == ""
    name = "uncore_imc_0/cas_count_read"
    counters.tell(name, 0, 1000)
    counters.tell(name, 56, 10, enabled_ns=400, running_ns=100)
    assert controllers.counts() == {f"{name} of core 0": 64_000.0, f"{name} of core 56": 2_560.0}
    counters.tell(name, 0, 1500)
    counters.tell(name, 56, 10, enabled_ns=500, running_ns=0)
    assert controllers.counts() is None
    assert controllers.unreadable == f"{name} of core 56 is not counted: other programs have taken the counters"
    assert counters.open_ones() == []


def test_a_counter_that_ends(tmp_path, counters):
    device(tmp_path, "uncore_imc_0", 14, "0", cas("read", "event=0x04"))
    controllers = MemoryControllers(tmp_path, counters.open)
    os.close(counters.ends.popitem()[1])
    assert controllers.counts() is None
    assert controllers.unreadable == "uncore_imc_0/cas_count_read of core 0 is counted no more"


def test_counters_are_given_back_with_the_object(tmp_path, counters):
    device(tmp_path, "uncore_imc_0", 14, "0,1", cas("read", "event=0x04"))
    controllers = MemoryControllers(tmp_path, counters.open)
    assert len(counters.open_ones()) == 2
    del controllers
    assert counters.open_ones() == []


def test_what_a_user_may_not_count(tmp_path, counters):
    device(tmp_path, "uncore_imc_0", 14, "0,1", cas("read", "event=0x04"))

    def refuse(event, core):
        if core:
            raise OSError(errno.EACCES, "Permission denied", event.name)
        return counters.open(event, core)

    controllers = MemoryControllers(tmp_path, refuse)
    assert controllers.unreadable.startswith("uncore_imc_0/cas_count_read may not be counted by this user: sysctl")
    assert counters.open_ones() == []


def test_a_machine_that_shows_none(tmp_path):
    assert MemoryControllers(tmp_path).unreadable.startswith(f"{tmp_path} has no memory controller")
    assert MemoryControllers(tmp_path / "none").counts() is None


def test_the_kernel_counts_what_it_is_asked_to():
    """By the clock that each kernel has, where this user may count what all do."""
    core = min(os.sched_getaffinity(0))
    try:
        descriptor = perf_counter(CPU_CLOCK, core)
    except OSError as refused:
        descriptor, failed = -1, refused.errno
    if descriptor < 0:
        assert failed in (errno.EACCES, errno.EPERM, errno.ENOSYS), "this user may not count, or it is no Linux"
        return
    try:
        first, enabled_ns, _ = struct.unpack("QQQ", os.read(descriptor, 24))
        time.sleep(0.02)
        second, later_ns, running_ns = struct.unpack("QQQ", os.read(descriptor, 24))
        assert second - first >= 15e6
        assert later_ns - enabled_ns >= 15e6
        assert running_ns > 0
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_this_machine():
    controllers = MemoryControllers()
    assert (controllers.counts() is None) == bool(controllers.unreadable)
