"""A loaded model in a process forked from the one that loaded it, as under `gunicorn --preload`."""

import os

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig, PersistentConfig, PersistentType
from hebe.embeddings.forked import UsedAfterFork
from hebe.runtime.executors.dense_graph import GraphMode, on_buffers
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from tests.examples.forked_child import in_child

NAME = "dlrm-rmc1"


def inputs(model: LoadedModel, items: int) -> tuple[dict, np.ndarray | None]:
    query = model.random_query(items)
    return query.features, query.dense


@pytest.mark.parametrize("items", [1, 500])
def test_a_model_of_resident_tables_predicts_in_a_forked_process(repository, items) -> None:
    model = LoadedModel.load(repository, NAME)
    given = inputs(model, items)

    def predict() -> object:
        scores = model.predict(*given)
        model.close()
        return scores.tolist()

    before = in_child(predict)
    assert np.array_equal(before, model.predict(*given)), "closed in the child alone"
    assert np.array_equal(before, in_child(predict)), "with an executor that the parent has used"
    model.close()


def test_a_forked_process_loads_models_of_its_own(repository) -> None:
    model = LoadedModel.load(repository, NAME)
    given = inputs(model, 3)
    scores = model.predict(*given)
    assert np.array_equal(scores, in_child(lambda: LoadedModel.load(repository, NAME).predict(*given).tolist()))
    model.close()


@pytest.mark.parametrize("kind", ["tiers", "compiled"])
def test_what_a_forked_process_cannot_use_is_refused(repository, tmp_path, monkeypatch, kind) -> None:
    options = LoadOptions()
    if kind == "tiers":
        persistent = PersistentConfig(PersistentType.ROCKS_DB, str(tmp_path))
        options = LoadOptions(hierarchy=HierarchyConfig(persistent_db=persistent))
    else:  # compiling takes half a minute
        monkeypatch.setattr("hebe.runtime.loaded_model.prepare", lambda module, *_, **__: on_buffers(module.eval()))
        options = LoadOptions(graph=GraphMode.COMPILED)
    model = LoadedModel.load(repository, NAME, options=options)
    given = inputs(model, 3)
    scores = model.predict(*given)

    def use() -> object:
        for call in (lambda: model.predict(*given), lambda: model.new_executor(3), model.refresh):
            with pytest.raises(UsedAfterFork) as raised:
                call()
        model.close()
        return raised.value.opened_by

    assert in_child(use) == os.getpid()
    assert np.array_equal(model.predict(*given), scores)
    model.close()
