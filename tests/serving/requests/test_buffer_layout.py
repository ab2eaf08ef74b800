import numpy as np
import pytest

from hebe.query import Batch, Query, SubQuery
from hebe.runtime.loaded_model import LoadedModel
from hebe.serving.requests.memo import BufferLayout


def laid_out(model, query, lead):
    """The query's tensors in one buffer behind `lead` bytes, and the layout."""
    parts = {feature.name: query.features[feature.name].tobytes() for feature in reversed(model.spec.features)}
    if query.dense is not None:
        parts["dense"] = query.dense.tobytes()
    starts, at = {}, lead
    for name, part in parts.items():
        starts[name] = at
        at += len(part)
    buffer = memoryview(bytearray(bytes(lead) + b"".join(parts.values())))
    return buffer, BufferLayout(model.spec, query.items, starts, starts.get("dense", 0))


@pytest.mark.parametrize("name", ["dlrm-rmc1", "din"])
@pytest.mark.parametrize("lead", [0, 3])
def test_a_query_that_was_found_scores_as_one_whose_arrays_were_given(repository, name, lead):
    model = LoadedModel.load(repository, name)
    executor = model.new_executor(64)
    query = model.random_query(30, seed=4)
    buffer, layout = laid_out(model, query, lead)
    found = layout.find(buffer)
    assert found is not None
    same = Query(1, 30, 0.0, features=found.features, dense=found.dense, described=found.described)
    for feature in model.spec.features:
        assert np.array_equal(found.features[feature.name], query.features[feature.name])
    cut = [SubQuery(query, 11, 30), SubQuery(same, 0, 7), SubQuery(same, 11, 30)]
    scores = executor.run(Batch(0, tuple(cut), 45)).scores
    assert np.array_equal(scores[:19], scores[26:45])
    alone = executor.run(Batch(0, (SubQuery(query, 0, 7),), 7)).scores
    assert np.allclose(scores[19:26], alone, atol=1e-6)
    model.close()


def test_what_a_model_would_refuse_is_not_found(repository):
    model = LoadedModel.load(repository, "dlrm-rmc1")
    query = model.random_query(5)
    buffer, layout = laid_out(model, query, 0)
    feature = model.spec.features[0]
    rows = model.spec.table(feature.table).rows
    found = layout.find(buffer)
    for key, is_found in ((rows - 1, True), (rows, False), (-1, False), (0, True)):
        found.features[feature.name][4, 0] = key  # a view of the buffer
        assert (layout.find(buffer) is not None) is is_found
    found.dense[2, 1] = np.inf
    assert layout.find(buffer) is None
    with pytest.raises(ValueError, match="outside of"):
        layout.find(buffer[:-1])
    model.close()
