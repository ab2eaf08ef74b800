"""How busy cores are, from a made-up `/proc` and this one; a machine that does the same work faster and slower."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest

from hebe.machine.meters.processor import (
    BusyMachine,
    BusyProcess,
    MachineSpeed,
    ProcessorMeter,
    ProcessorMeterError,
    busy_machine,
)
from hebe.machine.pinning import available_cores

OWN = 100


class Proc:
    """A `/proc` of the test's own: four cores and some processes, by their ticks."""

    def __init__(self, root):
        self.root = root
        self.cores = {
            core: dict.fromkeys(("user", "system", "idle", "iowait", "softirq", "steal"), 0) for core in range(4)
        }
        self.processes = {}
        self.process(OWN, "hebe", 1, 0)
        self.write()

    def process(self, pid, name, parent, ticks):
        self.processes[pid] = (name, parent, ticks)
        return self

    def spend(self, ticks, *processes):
        """Ticks by core and kind, and of processes (pid, ticks)."""
        for core, spent in ticks.items():
            for kind, count in spent.items():
                self.cores[core][kind] += count
        for pid, count in processes:
            name, parent, before = self.processes[pid]
            self.processes[pid] = (name, parent, before + count)
        self.write()

    def write(self):
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for core, t in self.cores.items():
            lines.append(
                f"cpu{core} {t['user']} 0 {t['system']} {t['idle']} {t['iowait']} 0 {t['softirq']} {t['steal']} 3 0"
            )
        (self.root / "stat").write_text("\n".join([*lines, "intr 123 0 0", "ctxt 99"]) + "\n")
        (self.root / "meminfo").write_text("MemTotal: 1 kB\n")
        for pid, (name, parent, ticks) in self.processes.items():
            fields = [parent, pid, pid, 0, -1, 4194560, 10, 0, 0, 0, ticks - ticks // 3, ticks // 3, 7, 7, 20]
            text = f"{pid} ({name}) R " + " ".join(map(str, fields)) + "\n"
            for place in [self.root / str(pid)] + [self.root / "self"] * (pid == OWN):
                place.mkdir(exist_ok=True)
                (place / "stat").write_text(text)


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path)


def test_shares_of_the_machine_of_chosen_cores_and_of_this_process(proc):
    meter = ProcessorMeter((0, 1), proc.root)
    proc.spend(
        {
            0: {"user": 50, "system": 20, "softirq": 10, "idle": 20},
            1: {"user": 20, "idle": 30, "iowait": 10, "steal": 40},
            2: {"user": 100},
            3: {"idle": 100},
        },
        (OWN, 60),
    )
    use = meter.read()
    assert use.cores == pytest.approx(100 / 200)
    assert use.machine == pytest.approx(200 / 400)
    assert use.process == pytest.approx(60 / 200)
    assert use.steal == pytest.approx(40 / 200)
    assert use.ticks == 200
    proc.spend({0: {"idle": 10}, 1: {"idle": 10}})
    use = meter.read()
    assert (use.cores, use.process, use.ticks) == (0.0, 0.0, 20)
    assert meter.read().ticks == 0, "no tick has gone by"
    assert meter.read().cores == 0.0


def test_time_that_steps_back_is_none(proc):
    proc.spend({0: {"idle": 50, "user": 5}})
    meter = ProcessorMeter((0,), proc.root)
    proc.spend({0: {"idle": -20, "user": 10}})
    assert meter.read().cores == 1.0


def test_a_core_that_is_taken_away_is_left_out(proc):
    meter = ProcessorMeter((0, 1), proc.root)
    del proc.cores[1]
    proc.spend({0: {"user": 10, "idle": 10}})
    assert meter.read().cores == 0.5
    del proc.cores[0]
    proc.write()
    with pytest.raises(ProcessorMeterError, match=r"stat knows none of the cores \[0, 1\]"):
        meter.read()


@pytest.mark.parametrize(("text", "said"), [(None, "cannot be read: No such file"), ("cpu0 a b", "not of the form")])
def test_a_proc_that_is_none(tmp_path, text, said):
    if text is not None:
        (tmp_path / "stat").write_text(text)
    with pytest.raises(ProcessorMeterError, match=said):
        ProcessorMeter((0,), tmp_path)
    with pytest.raises(ProcessorMeterError, match=said):
        busy_machine(cores=(0,), proc=tmp_path)


def look(proc, spend, **keywords):
    waited = []

    def wait(seconds):
        waited.append(seconds)
        spend()

    found = busy_machine(2.5, cores=(0, 1), proc=proc.root, wait=wait, **keywords)
    assert waited == [2.5]
    return found


def test_others_and_their_names(proc):
    proc.process(7, "a (b) c", 1, 1000).process(8, "quiet", 1, 5).process(9, "python", 1, 50).write()

    def spend():
        proc.process(10, "cc1", 9, 10)  # begun meanwhile
        proc.spend({0: {"user": 90, "idle": 10}, 1: {"user": 60, "idle": 40}}, (OWN, 70), (7, 20), (9, 50))

    found = look(proc, spend)
    assert found.share == pytest.approx((150 - 70) / 200)
    assert found.steal == 0.0
    assert found.processes == (
        BusyProcess("python", 9, 0.25),
        BusyProcess("a (b) c", 7, 0.1),
        BusyProcess("cc1", 10, 0.05),
    )
    assert str(found) == "40% of its cores are taken, most by python (pid 9)"


def test_no_more_of_them_are_named_than_asked_for(proc):
    for pid in range(20, 30):
        proc.process(pid, f"p{pid}", 1, 0)
    proc.write()
    spend = [(pid, pid) for pid in range(20, 30)]
    found = look(proc, lambda: proc.spend({0: {"user": 500}}, *spend), most=2)
    assert [process.pid for process in found.processes] == [29, 28]


def test_what_this_process_started_is_not_another(proc):
    proc.process(200, "child", OWN, 0).process(201, "grandchild", 200, 0).process(300, "other", 1, 0).write()

    def spend():
        proc.spend({0: {"user": 100}, 1: {"user": 20, "idle": 80}}, (OWN, 30), (200, 40), (201, 30), (300, 20))

    found = look(proc, spend)
    assert found.share == pytest.approx(20 / 200)
    assert [process.pid for process in found.processes] == [300]


def test_stolen_time_is_taken_by_other_machines(proc):
    proc.process(300, "other", 1, 0).write()
    found = look(proc, lambda: proc.spend({0: {"steal": 60, "user": 10, "idle": 30}, 1: {"idle": 100}}, (300, 10)))
    assert (found.share, found.steal) == (pytest.approx(0.35), pytest.approx(0.3))
    assert str(found) == "35% of its cores are taken, most by other machines on the same host"


def test_a_process_id_that_was_given_again_counts_from_its_beginning(proc):
    proc.process(300, "old", 1, 5000).write()

    def spend():
        proc.process(300, "new", 1, 0)
        proc.spend({0: {"user": 30, "idle": 70}, 1: {"idle": 100}}, (300, 30))

    assert look(proc, spend).processes == (BusyProcess("new", 300, 0.15),)


def test_what_nobody_here_seems_to_do_is_said_so(proc):
    found = look(proc, lambda: proc.spend({0: {"user": 100}, 1: {"idle": 100}}))
    assert str(found) == "50% of its cores are taken, by processes that cannot be seen from here"
    assert str(BusyMachine(0.0, 0.0, ())) == "0% of its cores are taken"


def test_a_process_that_ends_while_it_is_looked_at_is_left_out(proc):
    (proc.root / "300").mkdir()
    (proc.root / "301").mkdir()
    (proc.root / "301" / "stat").write_text("301 (cut")
    found = look(proc, lambda: proc.spend({0: {"user": 10}}))
    assert found.processes == ()


def test_this_machine_and_a_core_kept_busy():
    meter = ProcessorMeter()
    deadline_s = time.monotonic() + 60
    ticks = os.times().user
    while os.times().user - ticks < 0.2:
        assert time.monotonic() < deadline_s
    use = meter.read()
    assert use.ticks > 0
    assert 0 < use.process <= 1
    assert 0 < use.cores <= 1
    assert 0 < use.machine <= 1


def test_this_machine_can_be_asked_who_keeps_it_busy():
    found = busy_machine(0.05)
    assert 0 <= found.steal <= found.share <= 1
    assert os.getpid() not in [process.pid for process in found.processes]
    assert all(process.name and 0 < process.share <= 1 for process in found.processes)
    assert str(found).endswith(("taken", "here", ")", "host"))


def test_of_each_sample_the_fastest_run_counts():
    taken_s = iter([3.0, 2.5, 9.0, 4.0, 3.5, 8.0, 4.0, 5.0, 9.0, 6.0, 8.0, 2.0])
    speed = MachineSpeed((0,), lambda: next(taken_s))
    assert [speed.sample(), speed.sample()] == [2.5, 2.0]


def test_the_core_that_takes_longest_counts():
    together, order, own, seconds = threading.Barrier(2), itertools.count(), threading.local(), [1.0, 1.0]

    def work() -> float:
        together.wait(60)  # at the same time, so on two threads
        if not hasattr(own, "number"):
            own.number = next(order) % 2
        return seconds[own.number]

    speed = MachineSpeed(available_cores()[:1] * 2, work)
    assert speed.sample() == 1.0
    seconds[0] = 4.0
    assert speed.sample() == 4.0


def test_a_core_that_may_not_be_used_is_a_fault():
    with pytest.raises(OSError, match="Invalid argument"):
        MachineSpeed((1 << 15,)).sample()


def test_the_work_is_done_on_every_core_and_takes_time():
    assert MachineSpeed(available_cores()).sample() > 0
