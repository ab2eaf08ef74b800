from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.machine.meters.rapl import RaplCounters

RANGE_UJ = 262_143_328_850


def zone(root, place, name, energy_uj, range_uj=RANGE_UJ):
    directory = root / place
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "name").write_text(f"{name}\n")
    (directory / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (directory / "energy_uj").write_text(f"{energy_uj}\n")


def two_sockets(root):
    """As the kernel shows them: what lies within a package is no second one, nor is the same package by another way."""
    (root / "intel-rapl").mkdir()
    zone(root, "intel-rapl:0", "package-0", 1_000_000)
    zone(root, "intel-rapl:0:0", "core", 77)
    zone(root, "intel-rapl:0:1", "dram", 500_000)
    zone(root, "intel-rapl:1", "package-1", 5_000_000)
    zone(root, "intel-rapl:1:0", "dram", 600_000)
    zone(root, "intel-rapl:2", "psys", 9_000_000)
    zone(root, "intel-rapl-mmio:0", "package-0", 1_000_000)


def add(root, place, energy_uj):
    path = root / place / "energy_uj"
    path.write_text(str((int(path.read_text()) + energy_uj) % RANGE_UJ))


def test_packages_and_their_memory_are_added_up(tmp_path):
    two_sockets(tmp_path)
    rapl = RaplCounters(tmp_path)
    assert rapl.read() == (0.0, 0.0)
    add(tmp_path, "intel-rapl:0", 3_000_000)
    add(tmp_path, "intel-rapl:1", 500_000)
    add(tmp_path, "intel-rapl:1:0", 250_000)
    for other in ("intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"):
        add(tmp_path, other, 1_000_000)
    assert rapl.read() == (3.5, 0.25)
    add(tmp_path, "intel-rapl:0", 1_000_000)
    assert rapl.read() == (4.5, 0.25)
    assert (rapl.package_unreadable, rapl.dram_unreadable) == ("", "")


@given(st.integers(0, RANGE_UJ - 1), st.lists(st.integers(0, RANGE_UJ - 1), max_size=6))
def test_a_counter_that_begins_again_loses_nothing(tmp_path_factory, start_uj, steps_uj):
    root = tmp_path_factory.mktemp("powercap")
    zone(root, "intel-rapl:0", "package-0-die-0", start_uj)
    rapl = RaplCounters(root)
    for step_uj in steps_uj:
        add(root, "intel-rapl:0", step_uj)
        rapl.read()
    joules, memory = rapl.read()
    assert joules == pytest.approx(sum(steps_uj) / 1e6)
    assert memory is None
    assert "has no zone of memory" in rapl.dram_unreadable


def test_a_machine_without_rapl(tmp_path):
    for root, lacks in ((tmp_path / "none", "does not exist"), (tmp_path, "has no intel-rapl zone")):
        rapl = RaplCounters(root)
        assert rapl.read() == (None, None)
        assert f"{root} {lacks}" in rapl.package_unreadable
        assert rapl.dram_unreadable == rapl.package_unreadable


def test_zones_without_a_package(tmp_path):
    zone(tmp_path, "intel-rapl:0", "psys", 1)
    rapl = RaplCounters(tmp_path)
    assert rapl.read() == (None, None)
    assert rapl.package_unreadable == f"{tmp_path} has no zone of a processor package"


def test_a_file_that_root_alone_may_read(tmp_path, monkeypatch):
    two_sockets(tmp_path)
    path, read_text = tmp_path / "intel-rapl:0" / "energy_uj", type(tmp_path).read_text

    def refuse(self, *arguments, **keywords):
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read_text(self, *arguments, **keywords)

    monkeypatch.setattr(type(tmp_path), "read_text", refuse)
    rapl = RaplCounters(tmp_path)
    assert rapl.read() == (None, 0.0)
    assert rapl.package_unreadable == f"{path} may be read by root only: run as root, or let it be read (chmod a+r)"
    assert rapl.dram_unreadable == ""


def test_a_zone_that_vanishes_takes_its_kind_with_it(tmp_path):
    two_sockets(tmp_path)
    rapl = RaplCounters(tmp_path)
    path = tmp_path / "intel-rapl:1" / "energy_uj"
    path.unlink()
    add(tmp_path, "intel-rapl:0:1", 1_000_000)
    for _ in range(2):
        assert rapl.read() == (None, 1.0)
        assert rapl.package_unreadable == f"{path}: No such file or directory"
    (tmp_path / "intel-rapl:1:0" / "energy_uj").write_text("<none>\n")
    assert rapl.read() == (None, None)
    assert "intel-rapl:1:0/energy_uj holds '<none>' where a number should be" in rapl.dram_unreadable


def test_packages_may_be_given_up(tmp_path):
    two_sockets(tmp_path)
    rapl = RaplCounters(tmp_path)
    rapl.give_up_packages("stands still")
    assert rapl.read() == (None, 0.0)
    assert rapl.package_unreadable == "stands still"
