"""Modules as people have them are imported and served with the same scores, or refused with a message that helps."""

import functools

import numpy as np
import pytest
import torch

from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.module_inputs import FlatModule
from hebe.models.importing.split_check import check_split
from hebe.models.repository.repository import ModelRepository
from hebe.query import JaggedKeys
from hebe.runtime.executors.dense_graph import GraphMode
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.spec import OutOfRange, Pooling

from . import public_modules

SERVED = [
    "deep_fm",
    "float_matrix",
    "keys_and_numbers",
    "din",
    "masked_mean",
    "length_mask",
    "boolean_mask",
    "sas_rec",
    "sas_rec_left_padded",
    "hashing",
    "hashed_fields",
    "hashed_sequence",
    "padded_bag",
    "counted_mean",
    "jagged_padded_bag",
    "bucketized",
    "popularity",
    "jagged_bags_of_one_offsets",
    "jagged_bag_of_two_tables",
    "pooled_otherwise",
    "filled_in_place",
    "log_of_counts",
    "named_in_words",
]


@functools.cache
def captured_module(name):
    module, example = getattr(public_modules, name)()
    return module, example, capture(module, example, name)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = ModelRepository(tmp_path_factory.mktemp("models"))
    for name in SERVED:
        _, _, captured = captured_module(name)
        repository.write(captured.spec, captured.tables, captured.dense_state, captured.graph)
    return repository


def tensors_of(module, example):
    return {source.name: source.example for source in FlatModule(module, example).inputs}


def as_sent(captured, tensors):
    """(features, dense) as a client sends them: keys as the module's inputs have them."""
    features = {}
    for name, source in captured.sources.items():
        given = tensors[source.input]
        if source.offsets is None:
            features[name] = given.reshape(len(given), -1)[:, list(source.columns)].long().numpy()
        else:
            offsets = tensors[source.offsets].numpy()
            features[name] = JaggedKeys(given.numpy(), np.append(offsets, len(given)))
    numbers = [
        tensors[name].reshape(len(tensors[name]), -1)[:, list(columns)].float().numpy()
        for name, columns in captured.dense_columns.items()
    ]
    return features, np.concatenate(numbers, 1) if numbers else None


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("mode", [GraphMode.SCRIPTED, GraphMode.EAGER])
def test_a_module_is_imported_and_served_with_its_own_scores(repository, name, mode):
    module, example, captured = captured_module(name)
    assert check_split(module, example, captured) <= 1e-5
    model = LoadedModel.load(repository.root, name, options=LoadOptions(mode))
    model.warm_up(model.new_executor(16).run, 16)
    with torch.no_grad():
        flat = FlatModule(module, example)
        expected = flat(*tensors_of(module, example).values()).reshape(-1, flat.outputs)
    scores = model.predict(*as_sent(captured, tensors_of(module, example)))
    assert expected.std() > 1e-3, "scores that hardly differ would hide a mistake"
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-5, atol=1e-5)
    model.close()


@pytest.mark.parametrize("name", ["din", "sas_rec", "padded_bag", "counted_mean"])
def test_a_sequence_may_be_sent_without_its_padding(repository, name):
    module, example, captured = captured_module(name)
    features, dense = as_sent(captured, tensors_of(module, example))
    model = LoadedModel.load(repository.root, name)
    padded = model.predict(features, dense)
    for feature, given in features.items():
        if given.shape[1] > 1:
            present = given != captured.paddings[feature]
            features[feature] = JaggedKeys(given[present], np.concatenate([[0], present.sum(1).cumsum()]))
    np.testing.assert_allclose(model.predict(features, dense), padded, rtol=1e-5, atol=1e-5)
    model.close()


def test_a_maximum_is_not_served_to_a_part_of_its_keys(repository):
    module, example, captured = captured_module("pooled_otherwise")
    features, dense = as_sent(captured, tensors_of(module, example))
    model = LoadedModel.load(repository.root, "pooled_otherwise")
    expected = model.predict(features, dense)
    items, steps = features["hist"].shape
    whole = JaggedKeys(features["hist"].ravel(), np.arange(items + 1) * steps)
    np.testing.assert_array_equal(model.predict({**features, "hist": whole}, dense), expected)
    part = JaggedKeys(whole.values[1:], np.maximum(whole.offsets - 1, 0))
    with pytest.raises(ValueError, match="feature hist: length 3 of item 0 is too short: the model takes the maximum"):
        model.predict({**features, "hist": part}, dense)
    model.close()


def described(name):
    _, _, captured = captured_module(name)
    return [
        (f.name, f.table, captured.spec.table(f.table).rows, f.lookups, f.pooling, f.out_of_range)
        for f in captured.spec.features
    ]


REFUSE, WRAP, SUM, MEAN, CONCAT = OutOfRange.REFUSE, OutOfRange.WRAP, Pooling.SUM, Pooling.MEAN, Pooling.CONCAT


def test_jagged_features_of_one_offsets_keep_their_own_tables():
    assert described("jagged_bags_of_one_offsets") == [
        ("tags", "tags", 50, 3, MEAN, REFUSE),
        ("categories", "weights", 2000, 3, SUM, REFUSE),
    ]
    assert described("jagged_bag_of_two_tables") == [
        ("tags", "tags", 50, 3, MEAN, REFUSE),
        ("tags.weights", "weights", 2000, 3, SUM, REFUSE),
    ]


def test_bags_that_the_dense_net_pools_come_unreduced():
    _, _, captured = captured_module("pooled_otherwise")
    assert described("pooled_otherwise") == [
        ("hist", "greatest", 50, 4, CONCAT, REFUSE),
        ("watched", "weighted", 60, 3, CONCAT, REFUSE),
    ]
    assert captured.dense_columns == {"seconds": (0, 1, 2)}
    assert captured.spec.reads_keys, "the weights are zero where a key is"


def test_layers_of_any_name_become_tables_with_names_of_their_own():
    long = "tables." + "x" * 121
    tables = [table.name for table in captured_module("named_in_words")[2].spec.tables]
    assert tables == ["tables.user_id", "tables.user_id_", "tables.pa_s", "tables._", long, long[:-1] + "_"]


def test_what_hashing_modules_become():
    assert described("hashing") == [
        ("user", "user", 50, 1, SUM, WRAP),
        ("items", "items", 60, 4, MEAN, WRAP),
        ("city", "city", 20, 1, SUM, OutOfRange.CLAMP),
        ("shop", "shop", 29, 1, SUM, OutOfRange.CLAMP_HIGH),
    ]
    assert described("hashed_fields") == [
        ("x_0", "embedding.0", 7, 1, SUM, WRAP),
        ("x_1", "embedding.1", 11, 1, SUM, WRAP),
        ("x_2", "embedding.2", 5, 1, SUM, WRAP),
    ]


def test_a_key_below_what_a_module_clamps_is_refused(repository):
    model = LoadedModel.load(repository.root, "hashing")
    one = {name: np.full((1, spec.lookups), 7) for spec in model.spec.features for name in [spec.name]}
    assert np.isfinite(model.predict(one | {"city": [[-(10**12)]], "user": [[-(10**12)]]})).all()
    with pytest.raises(ValueError, match=r"feature shop: keys must lie in \[0, 29\)"):
        model.predict(one | {"shop": [[-1]]})
    model.close()


def test_masks_take_keys_and_nothing_else():
    _, _, captured = captured_module("din")
    assert described("din") == [("item", "item", 50, 1, SUM, REFUSE), ("hist", "item", 50, 5, CONCAT, REFUSE)]
    assert captured.spec.reads_keys
    assert captured.spec.dense_dim == 0
    assert captured.graph.inputs == ("dense", "sparse", "lengths", "keys")
    assert not captured_module("deep_fm")[2].spec.reads_keys


def test_columns_that_are_no_keys_come_as_dense_numbers():
    for name, expected in {
        "keys_and_numbers": {"x": (0, 2)},
        "float_matrix": {"x": (3, 4)},
        "length_mask": {"hist_len": (0,)},
        "boolean_mask": {"valid": (0, 1, 2, 3, 4)},
    }.items():
        _, _, captured = captured_module(name)
        assert captured.dense_columns == expected
        assert captured.spec.dense_dim == sum(map(len, expected.values()))
    assert not captured_module("keys_and_numbers")[2].spec.reads_keys


def test_positions_stay_in_the_dense_net():
    for name in ("sas_rec", "sas_rec_left_padded"):
        _, _, captured = captured_module(name)
        assert [table.name for table in captured.spec.tables] == ["item"]
        assert "position.weight" in captured.dense_state


REFUSED = {
    "length_mask_dividing_by_zero": "the module gives scores that are not finite on a query whose numbers lie between "
    r"0 and 1, as those that a server warms up with: see to divisions by hist_len, with clamp\(min=1\) say, and to its "
    "logarithms and roots",
    "sas_rec_unclamped": "the module would fail on a query whose numbers lie between 0 and 1, as those that a server "
    r"warms up with: aten.gather.default \(public_modules.py, line \d+: `return \(x.gather\(1, .*`\): index -1 is out "
    "of bounds for dimension 1 with size 6; what it takes as an index must stay in range whatever is sent: clamp it",
    "hashed_sequence_masked_raw": r"input hist is read as it is by aten.ne.Scalar \(public_modules.py, line \d+: "
    r"`mask = \(\(hist if self.masks_raw else hashed\) != 0\).float\(\).unsqueeze\(-1\)`\), but its column 0 becomes "
    r"keys that the server brings into the range of their table \(wrap\) before the model has them: read the keys in",
    "quotient_remainder": r"layer quotient: its keys go through aten.floor_divide.default \(public_modules.py, "
    r"line \d+: `return \(self.quotient\(x // 7\) \* self.remainder\(x % 7\)\).sum\(-1\)`\); a server can",
    "multiplicative_hash": r"layer item: its keys go through aten.mul.Tensor \(public_modules.py, line \d+: "
    r"`return self.item\(\(x \* 2654435761 \+ 7\) % 50\).sum\(-1\)`\); a server can select columns, take keys modulo "
    "or clamped to the rows of a table, and add constants: do the rest before sending",
    "replaced_unknowns": r"layer table: its keys go through aten.lt.Scalar \(public_modules.py, line \d+: "
    r"`x = torch.where\(x < 50, x, 0\)`\); a server can",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_named_with_its_line(name):
    module, example = getattr(public_modules, name)()
    with pytest.raises(GraphCaptureError, match=REFUSED[name]):
        check_split(module, example, capture(module, example, name))
