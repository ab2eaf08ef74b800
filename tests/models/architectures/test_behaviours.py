from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from hebe.models.architectures.behaviours import Behaviours
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SpecError

Spec = Callable[[str], ModelSpec]


def with_features(spec: ModelSpec, **changed: FeatureSpec | None) -> ModelSpec:
    """`spec` with some of its features changed, added or (None) left out."""
    features = {feature.name: feature for feature in spec.features} | changed
    return replace(spec, features=tuple(feature for feature in features.values() if feature is not None))


def test_parts_of_a_behaviour_stand_beside_each_other_as_their_candidates_do(small_spec: Spec) -> None:
    spec = small_spec("din")
    behaviours = Behaviours(spec)
    assert (behaviours.steps, behaviours.dim, behaviours.context_width) == (7, 8, 12)
    named = {slot.feature.name: slot for slot in spec.slots}
    sparse = torch.arange(float(spec.sparse_width)).repeat(2, 1)
    context, candidate, each, _ = behaviours(sparse, torch.full((2, 2), 7))

    def part(name: str, first: int = 0, count: int | None = None) -> list[float]:
        start = named[name].column + first
        return list(map(float, range(start, start + (named[name].width if count is None else count))))

    assert candidate[0].tolist() == part("category") + part("item")
    assert context[0].tolist() == part("user") + part("item") + part("category")
    for step in range(7):
        expected = part("category_history", 2 * step, 2) + part("item_history", 6 * step, 6)
        assert each[1, step].tolist() == expected


def test_a_behaviour_is_there_where_all_of_its_parts_are(small_spec: Spec) -> None:
    spec = small_spec("din")
    sparse = torch.zeros(4, spec.sparse_width)
    _, _, _, valid = Behaviours(spec)(sparse, torch.tensor([[7, 7], [3, 5], [6, 2], [0, 7]]))
    assert valid.sum(1).tolist() == [7, 3, 2, 0]
    assert all(row == sorted(row, reverse=True) for row in valid.tolist()), "from the first on"


def test_other_sequences_are_context_and_their_lengths_are_not_the_behaviours(small_spec: Spec) -> None:
    tags = FeatureSpec("tags", "user", 3, Pooling.CONCAT)
    spec = small_spec("din")
    spec = replace(spec, features=(tags, *spec.features))
    behaviours = Behaviours(spec)
    assert behaviours.context_width == 12 + 3 * 4
    _, _, _, valid = behaviours(torch.zeros(1, spec.sparse_width), torch.tensor([[0, 4, 5]]))
    assert valid.sum() == 4


def test_a_model_without_behaviours_is_refused(small_spec: Spec) -> None:
    with pytest.raises(SpecError, match="dlrm needs a behaviour sequence: a feature of pooling 'attention'"):
        Behaviours(small_spec("dlrm-dot"))


def test_parts_of_unlike_lengths_are_refused(small_spec: Spec) -> None:
    shorter = FeatureSpec("item_history", "item", 5, Pooling.ATTENTION)
    with pytest.raises(SpecError, match="item_history has 5 lookups but category_history has 7"):
        Behaviours(with_features(small_spec("din"), item_history=shorter))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"item": None}, 0),
        ({"item": FeatureSpec("item", "item", 1, Pooling.CONCAT)}, 0),
        ({"shown": FeatureSpec("shown", "item", 1, Pooling.MEAN)}, 2),
    ],
)
def test_a_candidate_is_the_one_pooled_feature_of_the_same_table(
    small_spec: Spec, change: dict[str, FeatureSpec | None], found: int
) -> None:
    with pytest.raises(SpecError, match=rf"item_history: its candidate must be .* of table item; there are {found}"):
        Behaviours(with_features(small_spec("din"), **change))


def test_a_candidate_in_a_table_of_its_own_is_not_the_behaviours(small_spec: Spec) -> None:
    shown = EmbeddingTableSpec("shown", 50, 6)
    spec = small_spec("din")
    features = [replace(each, table="shown") if each.name == "item" else each for each in spec.features]
    spec = replace(spec, tables=(*spec.tables, shown), features=tuple(features))
    with pytest.raises(SpecError, match="there are 0"):
        Behaviours(spec)
