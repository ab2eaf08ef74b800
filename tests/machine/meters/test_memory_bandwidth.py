from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from hebe.machine.meters.memory_bandwidth import BandwidthMeter, CacheWays, cache_ways

NO_CONTROLLERS = SimpleNamespace(counts=lambda: None, unreadable="no controllers")


class Resctrl:
    """resctrl's files as the kernel shows them, and a clock."""

    def __init__(self, root):
        self.root, self.now_s = root, 100.0
        (root / "info").mkdir()

    def count(self, group, cache, value):
        place = self.root / group / "mon_data" / f"mon_L3_{cache:02}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "mbm_total_bytes").write_text(f"{value}\n")

    def meter(self):
        return BandwidthMeter(self.root, lambda: self.now_s, NO_CONTROLLERS)


@pytest.fixture
def resctrl(tmp_path):
    return Resctrl(tmp_path)


def test_all_groups_and_caches_are_added_up(resctrl):
    resctrl.count("", 0, 1000)
    resctrl.count("", 1, 2000)
    resctrl.count("worker-a", 0, 500)
    resctrl.count("mon_groups/one", 0, 10**12)  # part of the root's own
    meter = resctrl.meter()
    resctrl.count("", 0, 5000)
    resctrl.count("", 1, 2400)
    resctrl.count("worker-a", 0, 700)
    resctrl.now_s += 2.0
    reading = meter.read()
    assert reading.bytes_per_s == pytest.approx((4000 + 400 + 200) / 2)
    assert (reading.reason, meter.unreadable) == ("", "")
    assert meter.source == "the last-level caches' counters (resctrl)"
    resctrl.now_s += 1.0
    assert meter.read().bytes_per_s == 0.0


def test_groups_may_come_and_go(resctrl):
    resctrl.count("", 0, 0)
    resctrl.count("goes", 0, 10**9)
    meter = resctrl.meter()
    shutil.rmtree(resctrl.root / "goes")
    resctrl.count("comes", 0, 10**9)
    resctrl.count("", 0, 300)
    resctrl.now_s += 1.0
    assert meter.read().bytes_per_s == 300.0
    resctrl.count("comes", 0, 10**9 + 50)
    resctrl.now_s += 1.0
    assert meter.read().bytes_per_s == 50.0


def test_what_cannot_be_counted_is_said(resctrl):
    meter = resctrl.meter()
    assert meter.read().bytes_per_s is None
    assert "counts no memory traffic" in meter.read().reason
    resctrl.count("", 0, "Unavailable")
    assert "mbm_total_bytes tells 'Unavailable'" in meter.read().reason
    resctrl.count("", 0, 7)
    resctrl.now_s += 1.0
    assert meter.read().reason.startswith("the reading before failed: ")
    assert meter.read().reason == "no time has passed since the last reading"
    resctrl.now_s += 1.0
    assert meter.read().bytes_per_s == 0.0


def test_a_counter_that_cannot_be_read(resctrl):
    place = resctrl.root / "mon_data" / "mon_L3_00" / "mbm_total_bytes"
    place.mkdir(parents=True)
    assert resctrl.meter().read().reason == f"no controllers; {place}: Is a directory"


def test_what_the_memory_controllers_count_comes_first(resctrl):
    counts = [{"imc 0": 64.0, "imc 1": 0.0}, {"imc 0": 192.0, "imc 1": 640.0}, None, {"imc 0": 9e9, "imc 1": 9e9}]
    controllers = SimpleNamespace(counts=lambda: counts.pop(0), unreadable="taken by another")
    resctrl.count("", 0, 7 * 10**9)
    meter = BandwidthMeter(resctrl.root, lambda: resctrl.now_s, controllers)
    assert meter.source == "the memory controllers' counters"
    resctrl.now_s += 2.0
    assert meter.read().bytes_per_s == (128 + 640) / 2
    resctrl.now_s += 1.0
    lost = meter.read()
    assert lost.bytes_per_s is None, "what two kinds of counters tell has no difference"
    assert lost.reason == f"what was the memory controllers' counters before is now {meter.source}"
    assert meter.source == "the last-level caches' counters (resctrl)"
    resctrl.now_s += 1.0
    assert meter.read().bytes_per_s is None


def test_without_resctrl(tmp_path):
    nowhere = BandwidthMeter(tmp_path / "none", controllers=NO_CONTROLLERS)
    assert "has no resctrl" in nowhere.read().reason
    assert (nowhere.source, nowhere.unreadable) == ("", nowhere.read().reason)
    unmounted = BandwidthMeter(tmp_path, controllers=NO_CONTROLLERS).read()
    assert unmounted.reason == f"no controllers; resctrl is not mounted: mount -t resctrl resctrl {tmp_path}"
    assert cache_ways(tmp_path / "none").count == 0
    assert "has no resctrl" in cache_ways(tmp_path / "none").reason
    assert "not mounted" in cache_ways(tmp_path).reason


@pytest.mark.parametrize(
    ("mask", "fewest", "expected"), [("7ff", "1", CacheWays(11, 1)), ("000fffff\n", "2\n", CacheWays(20, 2))]
)
def test_cache_ways(resctrl, mask, fewest, expected):
    (resctrl.root / "info" / "L3").mkdir()
    (resctrl.root / "info" / "L3" / "cbm_mask").write_text(mask)
    (resctrl.root / "info" / "L3" / "min_cbm_bits").write_text(fewest)
    assert cache_ways(resctrl.root) == expected


@pytest.mark.parametrize(
    ("mask", "fewest", "said"),
    [
        (None, "1", "has no control of the last-level cache"),
        ("x", "1", "invalid literal"),
        ("3", "4", "tells 2 ways of"),
    ],
)
def test_cache_ways_that_cannot_be_told(resctrl, mask, fewest, said):
    (resctrl.root / "info" / "L3").mkdir()
    if mask is not None:
        (resctrl.root / "info" / "L3" / "cbm_mask").write_text(mask)
    (resctrl.root / "info" / "L3" / "min_cbm_bits").write_text(fewest)
    ways = cache_ways(resctrl.root)
    assert (ways.count, ways.fewest) == (0, 0)
    assert said in ways.reason


def test_this_machine():
    reading, ways = BandwidthMeter().read(), cache_ways()
    assert (reading.bytes_per_s is None) == bool(reading.reason)
    assert (ways.count == 0) == bool(ways.reason)
