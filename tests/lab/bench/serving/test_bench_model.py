"""Models that benchmarks measure: made once and kept. Processes that measure, real ones."""

import pytest
from rich.progress import Progress

from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository
from hebe_lab.bench.serving import bench_model
from hebe_lab.bench.serving import bench_model as measuring_child
from hebe_lab.bench.serving.bench_model import bench_repository, measured_in_child

NAME, SCALE = "peers-dlrm", 0.001


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Asks for a model; the tasks that were shown meanwhile."""
    monkeypatch.setattr(bench_model, "BENCH_MODELS", tmp_path)

    def make(size=None, scale=SCALE):
        with Progress(disable=True) as progress:
            shown = []
            add = progress.add_task
            progress.add_task = lambda what, **options: shown.append((what, options["total"])) or add(what, **options)
            repository = bench_repository(NAME, size, progress, scale)
            assert not progress.tasks, "none is left unfinished"
        return ModelRepository(repository), shown

    return make


def test_a_model_is_made_once_and_kept(made):
    repository, shown = made()
    stored = repository.open(NAME)
    assert stored.spec == entry(NAME, scale=SCALE)
    assert shown == [(f"making {NAME}", stored.spec.table_bytes)]
    again, shown = made()
    assert (again.root, again.versions(NAME), shown) == (repository.root, (1,), [])
    assert again.open(NAME).identity == stored.identity


def test_another_scale_is_another_repository(made):
    assert made()[0].root != made(scale=2 * SCALE)[0].root


def test_a_model_whose_configuration_has_changed_since_is_made_anew(made, monkeypatch):
    repository, _ = made()
    monkeypatch.setattr("hebe.models.catalog.entry", lambda *_, **__: entry(NAME, scale=2 * SCALE))
    again, shown = made()
    assert again.root == repository.root
    assert shown
    assert again.open(NAME).spec == entry(NAME, scale=2 * SCALE)


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
