from __future__ import annotations

import os
from pathlib import Path

import pytest

from hebe.machine.meters.cache_allocation import CacheAllocationError, limited_to_ways

GONE = 1 << 23
"""Above the largest number that a process may have."""


@pytest.fixture
def resctrl(tmp_path, monkeypatch):
    """resctrl's files as the kernel shows them, of two caches with eleven ways of which two are the fewest."""
    root = tmp_path / "resctrl"
    (root / "info" / "L3").mkdir(parents=True)
    (root / "info" / "L3" / "cbm_mask").write_text("7ff\n")
    (root / "info" / "L3" / "min_cbm_bits").write_text("2\n")
    (root / "schemata").write_text("    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n")
    remove = Path.rmdir

    def as_the_kernel_does(group):
        for file in group.iterdir():
            file.unlink()
        remove(group)

    monkeypatch.setattr(Path, "rmdir", as_the_kernel_does)
    return root


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "task" / "4711").mkdir(parents=True)
    return tmp_path / "task"


def test_a_process_gets_so_many_ways_of_each_cache_for_a_while(resctrl, tasks):
    group = resctrl / f"hebe-{os.getpid()}"
    with limited_to_ways(3, resctrl, tasks):
        assert (group / "schemata").read_text() == "L3:0=7;1=7\n"
        assert (group / "tasks").read_text() == "4711\n"
    assert not group.exists()
    with limited_to_ways(11, resctrl, tasks):
        assert (group / "schemata").read_text() == "L3:0=7ff;1=7ff\n"


def test_what_killed_processes_have_left_is_removed_and_nothing_else(resctrl, tasks):
    def group(name, members=""):
        (resctrl / name).mkdir()
        (resctrl / name / "tasks").write_text(members)
        return resctrl / name

    left = group(f"hebe-{GONE}")
    others = [
        group(f"hebe-{GONE + 1}", "4711\n"),  # what it has started still runs there
        group(f"hebe-{os.getppid()}"),
        group("hebe-by-hand"),
        group(f"nginx-{GONE}"),
    ]
    with limited_to_ways(3, resctrl, tasks):
        assert not left.exists()
        assert all(other.exists() for other in others)


@pytest.mark.parametrize("ways", [0, 1, 12])
def test_as_many_ways_as_there_may_be(resctrl, tasks, ways):
    with (
        pytest.raises(CacheAllocationError, match=rf"^{ways} ways were asked for, from 2 to 11 may be given$"),
        limited_to_ways(ways, resctrl, tasks),
    ):
        pass


def test_a_cache_that_cannot_be_shared_out_is_told(resctrl, tasks, tmp_path):
    with (
        pytest.raises(CacheAllocationError, match=r"has no resctrl|is not mounted"),
        limited_to_ways(2, tmp_path / "none", tasks),
    ):
        pass
    (resctrl / "schemata").write_text("MB:0=100\n")
    with pytest.raises(CacheAllocationError, match="no line of L3"), limited_to_ways(2, resctrl, tasks):
        pass
    (resctrl / f"hebe-{os.getpid()}").write_text("in the way, as a right that is missing would be")
    with pytest.raises(CacheAllocationError, match=f"hebe-{os.getpid()}"), limited_to_ways(2, resctrl, tasks):
        pass
