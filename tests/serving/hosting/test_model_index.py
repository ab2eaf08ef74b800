"""What is kept, counted and told of models that were to be loaded."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from hebe.serving.hosting.model_index import ModelIndex, ModelIndexEntry, reason_of
from hebe.serving.requests.errors import LoadFailed


@pytest.fixture
def now_s():
    return [100.0]


@pytest.fixture
def index(now_s):
    return ModelIndex(lambda: now_s[0])


def test_entries_say_since_when(index, now_s):
    index.put("ranker", 1, "LOADING")
    now_s[0] = 160.0
    index.put("lone", 2, "UNAVAILABLE", "truncated")
    assert index.entries == (
        ModelIndexEntry("lone", 2, "UNAVAILABLE", "truncated", 160.0),
        ModelIndexEntry("ranker", 1, "LOADING", "", 100.0),
    )
    assert index.find("ranker") is index.entries[1]
    assert index.find("nobody") is None


def test_a_reason_can_be_sent_whatever_path_it_names(index):
    index.put("ranker", 1, "UNAVAILABLE", "/mod\udce8les/größe: truncated")
    assert index.find("ranker").reason == "/mod\\udce8les/größe: truncated"


def test_what_fails_is_told_each_time_and_counted_by_names_that_are_known(index):
    index.put("ranker", 1, "READY")
    assert index.failures == {"ranker": 0}
    with capture_logs() as lines:
        for name in ("ranker", "ranker", "x" * 10_000):
            index.failed("load", name, 2, LoadFailed("ranker/2 is truncated"))
    assert index.failures == {"ranker": 2}
    said = {"event": "load failed", "log_level": "error", "version": 2, "reason": "ranker/2 is truncated"}
    assert [line | {"model": ""} for line in lines] == [said | {"model": "", "exc_info": None}] * 3
    assert [line["model"] for line in lines] == ["ranker", "ranker", "x" * 200]
    assert index.find("ranker").state == "READY"


@pytest.mark.parametrize(
    ("fault", "reason", "has_traceback"),
    [
        (LoadFailed("no"), "no", False),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device", False),
        (ValueError("dim is 0"), "dim is 0", False),
        (KeyError("users"), "KeyError: 'users'", True),
        (MemoryError("x"), "MemoryError: x", True),
    ],
)
def test_a_fault_that_does_not_speak_for_itself_has_its_type_and_traceback(index, fault, reason, has_traceback):
    assert reason_of(fault) == reason
    with capture_logs() as lines:
        index.failed("refresh", "ranker", 1, fault)
    [line] = lines
    assert (line["reason"], line["exc_info"]) == (reason, fault if has_traceback else None)
    with capture_logs() as lines:
        index.failed("load", "ranker", 1, fault, in_log=False)
    assert len(lines) == has_traceback, "the caller tells what was wrong, but not where"
