"""Processes that measure, real ones."""

import pytest

from hebe_lab.bench.serving import bench_model as measuring_child
from hebe_lab.bench.serving.bench_model import measured_in_child

CHILD = """
import sys, time
print("warming up")
if sys.argv[1] == "fails":
    sys.exit("no such model")
time.sleep(60 if sys.argv[1] == "hangs" else 0)
print('{"qps": 3.5, "asked": "%s"}' % sys.argv[1])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """What a child finds to run."""
    (tmp_path / "measuring_child_of_a_test.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "measuring_child_of_a_test"


def test_the_last_line_is_what_was_measured(module):
    assert measured_in_child(module, ["once"], 1.0, "loop") == {"qps": 3.5, "asked": "once"}


def test_a_child_that_fails_is_told_by_its_own_words(module):
    with pytest.raises(RuntimeError, match=r"^loop of m failed: no such model$"):
        measured_in_child(module, ["fails"], 1.0, "loop of m")


def test_a_child_that_does_not_end_is_ended(module, monkeypatch):
    monkeypatch.setattr(measuring_child, "PATIENCE_S", 0.5)
    with pytest.raises(RuntimeError, match=r"^loop has not ended after 0\.75 s$"):
        measured_in_child(module, ["hangs"], 0.25, "loop")
