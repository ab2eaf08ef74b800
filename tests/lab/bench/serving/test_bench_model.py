import pytest
from rich.progress import Progress

from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository
from hebe_lab.bench.serving import bench_model
from hebe_lab.bench.serving.bench_model import bench_repository

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
