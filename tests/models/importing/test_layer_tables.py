import pytest
import torch
from torch import nn

from hebe.models.architectures.graph_module import build
from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.key_source import KeySource
from hebe.models.importing.layer_tables import ABSENT, FeatureSource, LayerUse, Weight
from hebe.models.importing.split_check import check_split
from hebe.spec import ModelSpec

from .small_modules import SUPPORTED, X, bag, captured_case, from_function, keys


def test_what_the_features_of_a_module_are():
    _, _, captured = captured_case("columns")
    described = [(f.name, f.table, f.lookups, str(captured.sources[f.name])) for f in captured.spec.features]
    assert described == [
        ("x_0", "first", 1, "x column 0"),
        ("x_1", "first", 1, "x column 1"),
        ("x_2", "other", 1, "x column 2"),
    ]
    assert [(t.name, t.rows, t.dim) for t in captured.spec.tables] == [("first", 20, 4), ("other", 30, 2)]
    assert captured.spec.sequences == ()
    assert captured.spec.architecture == "imported"


def test_fields_side_by_side_become_tables_of_their_own():
    module, _, captured = captured_case("fields")
    tables = {table.name: table.rows for table in captured.spec.tables if table.name.startswith("embedding")}
    assert tables == {"embedding.0": 5, "embedding.1": 7, "embedding.2": 3}
    weight = module.embedding.weight.detach()
    torch.testing.assert_close(torch.from_numpy(captured.tables["embedding.1"]), weight[5:12], rtol=0, atol=0)
    assert captured.tables["embedding.1"].base is not None, "tables are views of the module's weights"


def test_a_jagged_feature_may_have_more_keys_than_the_example():
    module, example = SUPPORTED["jagged"]
    assert capture(module, example, "model").spec.features[0].lookups == 4
    captured = capture(module, example, "model", lookups={"values": 20})
    assert captured.spec.features[0].lookups == 20
    assert check_split(module, example, captured) <= 1e-6
    with pytest.raises(GraphCaptureError, match="an item with 4 keys, more than allowed"):
        capture(module, example, "model", lookups={"values": 3})
    with pytest.raises(GraphCaptureError, match="lookups are given for users, which gives no jagged feature"):
        capture(module, example, "model", lookups={"users": 3})


def test_a_feature_is_never_called_what_the_protocol_reserves():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 2)

        def forward(self, score):
            return self.bag(score)

    captured = capture(Named(), (keys(9, 4, 2),), "model")
    assert captured.spec.features[0].name == "score.bag"


def test_layers_that_begin_with_an_underscore_get_names_that_may_be_stored():
    module = from_function(lambda m, x: m._e(x) + m.e(x), e=bag(), _e=bag())
    captured = capture(module, (keys(20, 6, 3),), "model")
    assert [table.name for table in captured.spec.tables] == ["e", "e_"]
    assert check_split(module, (keys(20, 6, 3),), captured) <= 1e-6


def test_inputs_of_any_name_become_features():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.values, self.e = bag(), bag()

        def forward(self, batch):
            return sum(self.values(x) + self.e(x) for x in batch.values())

    module, example = Named(), {"user id": X, "user:id": X, "x" * 200: X}
    captured = capture(module, example, "model")
    names = [feature.name for feature in captured.spec.features]
    long = "x" * 128
    assert names == ["user_id", "user_id.e", "user_id_", "user_id_.e", long, "x" * 126 + ".2"]
    assert check_split(module, example, captured) <= 1e-6


@pytest.mark.parametrize("mode", ["max", "sum", "mean"])
def test_the_keys_of_a_maximum_are_sent_whole(mode):
    module = from_function(lambda m, x: m.bag(x) + m.one(x[:, :1]), bag=bag(mode=mode), one=bag(mode="max"))
    spec = capture(module, (X,), "model").spec
    assert [(f.lookups, f.whole) for f in spec.features] == [(3, mode == "max"), (1, False)]
    assert ModelSpec.from_dict(spec.to_dict()) == spec


def test_a_feature_is_sent_whole_where_one_of_its_layers_takes_the_maximum():
    module = from_function(
        lambda m, x: m.e(x).amax(1) + m.bag(x), e=nn.Embedding(20, 2), bag=nn.EmbeddingBag(20, 2, mode="max")
    )
    module.bag.weight = module.e.weight
    assert [f.whole for f in capture(module, (X,), "model").spec.features] == [True]


def test_a_mean_over_keys_of_two_inputs_is_over_those_that_an_item_has():
    module = from_function(lambda m, x, y: m.bag(torch.cat([x, y], 1)), bag=bag(mode="mean"))
    captured = capture(module, (X, X[:, :2]), "model")
    sent = torch.tensor([[7, 8, ABSENT, 9, ABSENT], [3, ABSENT, ABSENT, ABSENT, ABSENT], [ABSENT] * 5])
    rows = module.bag.weight.detach()
    looked_up = rows[sent.clamp(min=0)] * (sent != ABSENT)[..., None]
    scores = build(captured.graph, captured.dense_state)(torch.empty(3, 0), looked_up.flatten(1), sent[:, :2], sent)
    assert torch.allclose(scores, torch.stack([rows[[7, 8, 9]].mean(0), rows[3], torch.zeros(2)]))


REFUSED = {
    "layer bag: its keys are brought into the range of 21 rows, where it has 20 for them": (
        from_function(lambda m, x: m.bag(x % 21), bag=bag()),
        (X,),
    ),
    "layer bag: its keys are brought into the range of 5 and of 7 rows, where it has 20 for them": (
        from_function(lambda m, x: m.bag(x % torch.tensor([5, 7, 5])), bag=bag()),
        (X,),
    ),
    "input inputs_0: its values become keys of table bag, but the example has 10.5: keys must be whole numbers": (
        from_function(lambda m, x: m.bag(x.long()), bag=bag()),
        (X.float() + 0.5 * (X[0, 0] == X),),
    ),
    r"layer e: in one call its keys lie in rows 0 to 29 and in another in rows 1 to 29, by the constants and": (
        from_function(lambda m, x: m.e(x[:, 0]) + m.e(x[:, 1] + 1), e=nn.Embedding(30, 2)),
        (X,),
    ),
    "the constant -1 that is added to its keys lies outside": (
        from_function(lambda m, x: m.e(x[:, 0] - 1), e=nn.Embedding(30, 2)),
        (X + 1,),
    ),
    "input inputs_0: the example has key 19, outside of the 2 rows of table e.0": (
        from_function(lambda m, x: m.e(x + torch.tensor([0, 2, 4])).sum(1), e=nn.Embedding(30, 2)),
        (X.clamp(19),),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_captured_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        capture(module, example, "model")


ROWS = torch.arange(12.0).view(4, 3)


@pytest.mark.parametrize(
    ("value", "overlaps"),
    [
        (ROWS, True),
        (ROWS[2:], True),
        (ROWS.t(), True),
        (ROWS.view(-1)[11:], True),
        (ROWS[:, :1], True),
        (ROWS.clone(), False),
        (ROWS.half(), False),
        (torch.zeros(3, dtype=torch.bfloat16), False),
    ],
)
def test_weights_overlap_where_they_have_an_element_in_common(value, overlaps):
    assert Weight("a", ROWS).overlaps(Weight("b", value)) is overlaps
    assert Weight("b", value).overlaps(Weight("a", ROWS)) is overlaps


def test_parts_of_one_tensor_that_have_nothing_in_common_do_not_overlap():
    assert not Weight("a", ROWS[:2]).overlaps(Weight("b", ROWS[2:]))
    assert not Weight("a", ROWS[:, :1]).overlaps(Weight("b", ROWS[:, 1:]))


def test_an_address_is_the_same_for_another_name_and_no_other_part():
    assert Weight("a", ROWS).address == Weight("b", ROWS.view(4, 3)).address
    assert len({Weight("a", part).address for part in (ROWS, ROWS[:3], ROWS[1:], ROWS[:, :2], ROWS.t())}) == 5


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (FeatureSource("x", (2,)), "x column 2"),
        (FeatureSource("x", (2, 3, 4)), "x columns 2 to 4"),
        (FeatureSource("x", (4, 3)), "x columns 4, 3"),
        (FeatureSource("x", (0, 2, 3)), "x columns 0, 2, 3"),
        (FeatureSource("values", (), "starts"), "values by starts"),
    ],
)
def test_a_source_is_told_in_words(source, text):
    assert str(source) == text


def use_of(*sources, rows=10):
    return LayerUse("e", Weight("e.weight", torch.zeros(rows, 2)), sources, (2,), ())


@pytest.mark.parametrize(
    ("offsets", "ranges"),
    [([0], ((0, 10),)), ([0, 0, 4], ((0, 4), (4, 10))), ([7, 3, 0], ((0, 3), (3, 7), (7, 10))), ([2], ((2, 10),))],
)
def test_a_field_ends_where_the_next_begins(offsets, ranges):
    assert use_of(*(KeySource("x", i, offset) for i, offset in enumerate(offsets))).ranges == ranges


def test_a_rule_that_leaves_fewer_rows_than_a_field_has_ends_it():
    assert use_of(KeySource("x", 0, rows=3), KeySource("x", 1, 4, rows=6)).ranges == ((0, 3), (4, 10))
    with pytest.raises(GraphCaptureError, match="brought into the range of 5 rows, where it has 4 for them"):
        _ = use_of(KeySource("x", 0, rows=5), KeySource("x", 1, 4)).ranges
