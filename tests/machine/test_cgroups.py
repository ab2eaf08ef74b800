from __future__ import annotations

import math

import pytest

from hebe.machine.cgroups import ControlGroupLimits, MemoryLimit, control_group_limits, memory_limits

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path):
    """Writes a control group's files, and what group this process is in; `limits` reads them."""

    class Groups:
        mounted = tmp_path / "cgroup"

        def of_process(self, *lines):
            (tmp_path / "self").mkdir(exist_ok=True)
            (tmp_path / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

        def write(self, group, **files):
            (self.mounted / group).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (self.mounted / group / name.replace("__", ".")).write_text(f"{text}\n")

        def limits(self):
            return control_group_limits(tmp_path, self.mounted)

        def memory(self):
            return list(memory_limits(tmp_path, self.mounted))

    return Groups()


def test_nothing_limits_where_nothing_is_mounted(groups):
    assert groups.limits() == ControlGroupLimits(math.inf, math.inf)
    groups.of_process("0::/nowhere", "garbage", "")
    assert groups.limits() == ControlGroupLimits(math.inf, math.inf)


def test_version_2_the_least_of_all_groups_above(groups):
    groups.of_process("0::/system.slice/hebe.service")
    groups.write("system.slice/hebe.service", cpu__max="400000 100000", memory__max="max")
    groups.write("system.slice", cpu__max="250000 100000", memory__max=8 * GIB)
    groups.write("", cpu__max="max 100000", memory__max=16 * GIB)
    groups.write("other.slice", cpu__max="1 100000", memory__max=1)
    assert groups.limits() == ControlGroupLimits(2.5, 8 * GIB)


def test_version_2_within_a_container_whose_group_is_mounted_as_the_root(groups):
    groups.of_process("0::/kubepods/pod1/abc")
    groups.write("", cpu__max="150000 100000", memory__max=2 * GIB)
    assert groups.limits() == ControlGroupLimits(1.5, 2 * GIB)


def test_version_1(groups):
    groups.of_process("4:memory:/docker/abc", "3:cpu,cpuacct:/docker/abc", "1:name=systemd:/", "0::/")
    groups.write("cpu,cpuacct/docker/abc", cpu__cfs_quota_us=300_000, cpu__cfs_period_us=100_000)
    groups.write("cpu,cpuacct", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100_000)
    groups.write("memory/docker/abc", memory__limit_in_bytes=3 * GIB)
    groups.write("memory", memory__limit_in_bytes=9223372036854771712)
    assert groups.limits() == ControlGroupLimits(3.0, 3 * GIB)


def test_what_is_used_of_a_limit_version_2(groups):
    groups.of_process("0::/pod/hebe")
    stat = f"anon 7\ninactive_file {GIB}\nactive_file 5\nslab 9"
    groups.write("pod/hebe", memory__max="max", memory__current=GIB)
    groups.write("pod", memory__max=8 * GIB, memory__current=6 * GIB, memory__stat=stat)
    assert groups.memory() == [MemoryLimit(8 * GIB, 6 * GIB, GIB + 5)]
    assert groups.memory()[0].available_bytes == 3 * GIB + 5


def test_what_is_used_of_a_limit_version_1(groups):
    groups.of_process("4:memory:/docker/abc", "0::/")
    stat = "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40"
    groups.write("memory/docker/abc", memory__limit_in_bytes=3 * GIB, memory__usage_in_bytes=GIB, memory__stat=stat)
    groups.write("memory/docker", memory__limit_in_bytes=4 * GIB, memory__usage_in_bytes=3 * GIB)
    groups.write("memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=9 * GIB)
    assert groups.memory() == [MemoryLimit(3 * GIB, GIB, 70), MemoryLimit(4 * GIB, 3 * GIB, 0)]


def test_a_file_that_makes_no_sense_limits_nothing(groups):
    groups.of_process("0::/")
    groups.write("", cpu__max="", memory__max="lots", cpu__cfs_quota_us="100", cpu__cfs_period_us="0")
    assert groups.limits() == ControlGroupLimits(math.inf, math.inf)


def test_a_path_that_leads_out_of_the_mount_is_not_followed(groups, tmp_path):
    groups.of_process("0::/../elsewhere")
    groups.write("", memory__max=GIB)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "memory.max").write_text("1\n")
    assert groups.limits().memory_bytes == GIB


def test_this_machine():
    limits = control_group_limits()
    assert limits.cores > 0
    assert limits.memory_bytes > 0
