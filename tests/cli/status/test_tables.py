"""Tables of status documents, without the command."""

import io
import re

import pytest
from rich.console import Console

from hebe.cli.status.tables import duration_text, status_tables

from .status_documents import DEGRADED, LONE, RANKER, SERVER, document

URL = "http://127.0.0.1:8000"


def tables(width=160, **changed):
    """The tables of a document, as a terminal of so many columns has them."""
    console = Console(file=io.StringIO(), width=width)
    console.print(status_tables(document(**changed), URL))
    return console.file.getvalue()


def test_keys_that_tables_in_memory_lack_are_shown_where_there_are_any():
    assert "refused" not in tables().split("Online updates")[1]
    updates = RANKER["updates"]["tiers"]
    refused = RANKER | {"updates": {"tiers": updates, "resident": updates | {"refused": 1234}}}
    shown = tables(models=[refused]).split("Online updates")[1]
    assert "refused" in shown
    [row] = [line for line in shown.splitlines() if "resident" in line]
    assert "1,234" in row


def test_messages_that_were_passed_over_are_shown_where_there_are_any():
    """An older server does not tell of them."""
    assert "passed over" not in tables()
    updates = RANKER["updates"]["tiers"]
    for count, shows in ((0, False), (1234, True)):
        model = RANKER | {"updates": {"tiers": updates | {"passed_over": count}}}
        shown = tables(models=[model]).split("Online updates")[1]
        assert ("passed over" in shown, "1,234" in shown) == (shows, shows)


def test_lag_that_the_log_does_not_tell_is_said_to_be_unknown():
    updates = RANKER["updates"]["tiers"]
    assert "unknown" not in tables().split("Online updates")[1]
    shown = tables(models=[RANKER | {"updates": {"tiers": updates | {"lag_messages": None}}}])
    assert "unknown" in shown.split("Online updates")[1]


@pytest.mark.parametrize("width", [160, 100])
def test_deletes_and_missing_messages_are_shown_where_there_are_any(width):
    shown = tables(width).split("Online updates")[1].splitlines()[1]
    assert "deletes" in shown
    assert "missing" in shown
    updates = RANKER["updates"]["tiers"] | {"deletes": 0, "missing": 0}
    shown = tables(width, models=[RANKER | {"updates": {"tiers": updates}}]).split("Online updates")[1]
    assert "deletes" not in shown
    assert "missing" not in shown


def test_the_slowest_tier_is_named_once_it_has_had_an_update():
    visible = {"persistent_db": {"p50": 0.9, "p99": 1.0}, "cache": {"p50": 0.03, "p99": 2.5}}
    updates = RANKER["updates"]["tiers"]
    shown = tables(models=[RANKER | {"updates": {"tiers": updates | {"visible_s": visible}}}])
    assert "cache: p50 30 ms, p99 2.5 s" in shown
    nothing = {tier: {"p50": None, "p99": None} for tier in visible}
    shown = tables(models=[RANKER | {"updates": {"tiers": updates | {"visible_s": nothing}}}])
    assert "visible in" not in shown


def test_the_sizes_of_tiers_below_the_cache_are_shown_where_they_are_known():
    """Not of one elsewhere, nor by an older server, which tells of the cache's alone."""
    cache, redis = RANKER["tiers"]
    hash_map = redis | {"kind": "parallel_hash_map", "rows": 123_456, "bytes": 3 << 30}
    rocksdb = redis | {"name": "persistent_db", "kind": "rocks_db", "rows": 987_654, "bytes": None}
    older = {name: value for name, value in redis.items() if name not in ("rows", "bytes")}
    for below, sizes in (
        ([hash_map, rocksdb], [["123,456", "3", "GiB", "6"], ["987,654", "6"]]),
        ([redis, older], [["6"], ["6"]]),
    ):
        shown = tables(models=[RANKER | {"tiers": [cache, *below]}]).split("Tiers")[1].splitlines()[2:5]
        assert shown[0].split()[-6:] == ["800", "1,024", "1", "MiB", "90", "90%"]
        for line, size in zip(shown[1:], sizes, strict=True):
            assert line.split("circuit open")[1].split()[: len(size)] == size


def test_tables():
    shown = tables()
    assert "Nothing is degraded." in shown
    for words in (
        "ranker        7  ready        2      3    256    12,345        7   98.5%  p95 50 ms    1.25      20      45",
        "circuit open",
        "2.5 s ago: Redis 10.0.0.7:6379: Connection refused",
        "90%",
        "1,000       2.5%      0     0.1%",
        "800 rows in 250 ms, 4 not reached",
        "4,321        3    12.5   11  persistent_db: p50 20 ms, p99 1.5 s     1        3       0",
        "its checksum is wrong",
    ):
        assert words in shown


SPLIT = {
    "placement": "pipeline-on-host", "workers": 1, "cores_per_worker": 1, "batch_size": 64, "dense_workers": 1,
    "fused_items": 0,
}  # fmt: skip
WINDOW = {"qps": 88.0, "seconds": 10.0, "late": 0.01, "kept": True, "power_watts": 25.5, "estimated": False}
BY_PROFILE = LONE | {
    "configuration": SPLIT,
    "profile": {"configuration": SPLIT, "qps": 100.0, "power_watts": 30.0, "estimated": True},
    "measured": {"qps": 120.0, "power_watts": 40.0, "estimated": False, "at": "2026-05-05T00:00:00", "window": WINDOW},
}


def test_how_models_are_split_and_what_profiles_say_beside_what_is_measured():
    plain = RANKER | {
        "configuration": SPLIT | {"placement": "model-on-host", "workers": 2, "dense_workers": 0},
        "profile": None,
        "measured": None,
    }
    shown = tables(models=[BY_PROFILE, plain])
    assert shown.index("Models") < shown.index("Configurations") < shown.index("Tiers")
    for words in (
        "pipeline-on-host, 1 sparse worker of 1 core, 1 dense",
        "model-on-host, 2 workers of 1 core, batches of 64",
        "         100           120        ~30          40  88 qps, in SLA, 25.5 W",
    ):
        assert words in shown


def styled(**changed):
    """The words of the tables that are red."""
    console = Console(file=io.StringIO(), width=160)
    lines = console.render_lines(status_tables(document(**changed), URL))
    return [part.text.strip() for line in lines for part in line if part.style and part.style.color]


def test_a_power_budget_stands_beside_what_is_measured():
    assert "budget W" not in tables(models=[BY_PROFILE])
    for budget, red in ((50.0, []), (30.0, ["40"]), (25.0, ["~30", "40", "25.5"])):
        model = BY_PROFILE | {"profile": BY_PROFILE["profile"] | {"power_budget_watts": budget}}
        shown = tables(models=[model])
        assert "  measured W  budget W  last load" in shown
        assert f"          40        {budget:g}  88 qps, in SLA, 25.5 W" in shown
        assert [words for words in styled(models=[model]) if words not in ("is ready", "ready")] == red


def test_before_anything_is_measured_its_cells_are_empty():
    model = BY_PROFILE | {"measured": dict.fromkeys(BY_PROFILE["measured"])}
    shown = tables(models=[model]).split("Configurations")[1].splitlines()
    assert re.search(r"dense.* 100 +~30$", shown[2].rstrip())


def test_the_threads_of_each_worker():
    shown = tables(models=[BY_PROFILE | {"threads": 2}])
    lines = shown.split("Configurations")[1].splitlines()
    assert "threads each" in lines[1]
    assert "             2          100" in lines[2]


@pytest.mark.parametrize(("kept", "verdict"), [(False, "88 qps, SLA missed"), (None, "88 qps, at the SLA's edge")])
def test_a_load_without_a_power_meter(kept, verdict):
    window = WINDOW | {"kept": kept, "power_watts": None}
    model = BY_PROFILE | {"measured": BY_PROFILE["measured"] | {"window": window}}
    shown = tables(models=[model])
    assert any(line.endswith(verdict) for line in shown.splitlines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (40.0, "40 s"),
        (99.9, "100 s"),
        (720.0, "12 min"),
        (11_100.0, "3 h 5 min"),
        (360_000.0, "4 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_the_tables_fit_a_narrow_terminal():
    shown = tables(width=80, degraded=[DEGRADED])
    assert max(map(len, shown.splitlines())) <= 80
    assert "not enough room for" in shown
    for needed in ("volatile_db", "95 s", "circuit open", "98.5%", "Connection"):
        assert needed in shown


@pytest.mark.parametrize(
    ("server", "models", "why"),
    [
        ({"reason": "no model is loaded"}, [], "no model is loaded"),
        ({}, [], "no model is loaded"),
        ({}, [{"name": "lone", "version": 1, "state": "UNAVAILABLE", "ready": False}], "no model is loaded"),
        ({"live": False}, [LONE], "it is stopping"),
        ({}, [LONE], "it does not say why"),
    ],
)
def test_a_server_that_is_not_ready_says_why_though_nothing_is_degraded(server, models, why):
    """An older server does not say so itself."""
    lines = tables(server=SERVER | {"ready": False} | server, models=models).splitlines()
    assert "is NOT READY" in lines[0]
    assert lines[1] == f"Not ready: {why}"
