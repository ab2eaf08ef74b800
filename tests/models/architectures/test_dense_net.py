from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from hebe.models.architectures.dense_net import (
    DenseNet,
    check_fields,
    check_no_behaviours,
    choice_setting,
    column_runs,
    count_setting,
    initialise,
    linear,
    take,
)
from hebe.spec import ModelSpec, SpecError

Spec = Callable[[str], ModelSpec]


def test_neighbouring_columns_are_taken_at_once(small_spec: Spec) -> None:
    spec = small_spec("din")  # category_history 7 x 2, user 4, item 6, item_history 7 x 6, category 2
    slots = {slot.feature.name: slot for slot in spec.slots}

    def runs(*names: str) -> tuple[tuple[int, int], ...]:
        return column_runs([slots[name] for name in names])

    assert runs("user", "item") == ((14, 10),)
    assert runs("user", "item", "category") == ((14, 10), (66, 2))
    assert runs("item", "user") == ((18, 6), (14, 4)), "in the order asked for"
    assert runs(*slots) == ((0, spec.sparse_width),)


def test_columns_stand_side_by_side_and_one_run_is_not_copied() -> None:
    sparse = torch.arange(24.0).view(2, 12)
    assert take(sparse, ((8, 2), (0, 3))).tolist() == [[8, 9, 0, 1, 2], [20, 21, 12, 13, 14]]
    assert take(sparse, ((4, 8),)).data_ptr() == sparse[:, 4:].data_ptr()


def test_towers_must_be_those_that_are_read(small_spec: Spec) -> None:
    spec = replace(small_spec("multi-task"), settings={})
    check_fields(spec, ["task"], optional_towers=["trunk"])
    check_fields(replace(spec, towers={"task": (8, 5)}), ["task"], optional_towers=["trunk"])
    with pytest.raises(SpecError, match=r"towers\.trunk is not read by this architecture; it reads task"):
        check_fields(spec, ["task"])
    with pytest.raises(SpecError, match=r"model small-.* \(multi-.*\): towers\.top is missing: give the widths of its"):
        check_fields(spec, ["task", "trunk", "top"])


def test_settings_about_tables_are_every_architectures(small_spec: Spec) -> None:
    spec = replace(small_spec("wide-and-deep"), settings={"row_bound": 0.1})
    check_fields(spec, ["deep"])
    with pytest.raises(SpecError, match=r"settings\.heads is not read by this architecture; it reads hidden, row_boun"):
        check_fields(replace(spec, settings={"heads": 2}), ["deep"], ["hidden"])


def test_a_choice_is_one_of_those_given(small_spec: Spec) -> None:
    spec = replace(small_spec("dlrm-dot"), settings={"interaction": "dot", "width": 1})
    assert choice_setting(spec, "interaction", ["dot", "concat"], "concat") == "dot"
    assert choice_setting(spec, "absent", ["dot", "concat"], "concat") == "concat"
    for name, choices in (("interaction", ["sum", "mean"]), ("width", ["1", "2"])):
        with pytest.raises(SpecError, match=f"settings.{name} is .*: must be one of {', '.join(choices)}"):
            choice_setting(spec, name, choices, choices[0])


def test_a_count_is_a_whole_number_of_at_least_one(small_spec: Spec) -> None:
    spec = small_spec("bst")
    assert count_setting(spec, "heads", 7) == 2
    assert count_setting(spec, "absent", 7) == 7
    for value in (0, -1, 1.0, True, "1"):
        with pytest.raises(SpecError, match=r"settings\.heads is .*: must be a whole number of at least 1"):
            count_setting(replace(spec, settings={"heads": value}), "heads", 7)


def test_attention_pooling_is_refused_where_nothing_computes_it(small_spec: Spec) -> None:
    check_no_behaviours(small_spec("dlrm-dot"))
    with pytest.raises(SpecError, match="feature category_history: pooling 'attention' is not computed by din"):
        check_no_behaviours(small_spec("din"))


class Mixed(nn.Module):
    """A module of each kind that is drawn, and one that draws its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(linear(300, 200), nn.PReLU(), nn.LayerNorm(200), linear(200, 10, bias=False))
        self.own = nn.Parameter(torch.empty(5))

    def draw(self, generator: torch.Generator) -> None:
        self.own.fill_(0).add_(torch.rand(5, generator=generator))


def test_weights_of_every_kind_are_drawn_as_is_written() -> None:
    net = Mixed()
    nn.init.constant_(net.layers[1].weight, 9.0)
    nn.init.constant_(net.layers[2].weight, 9.0)
    initialise(net, 3)
    first, slope, norm, last = net.layers
    assert first.weight.std().item() == pytest.approx((2 / 500) ** 0.5, rel=0.02)
    assert first.bias.std().item() == pytest.approx((1 / 200) ** 0.5, rel=0.2)
    assert last.weight.std().item() == pytest.approx((2 / 210) ** 0.5, rel=0.1)
    assert last.bias is None
    assert slope.weight.tolist() == [0.25]
    assert norm.weight.tolist() == [1.0] * 200
    assert len(set(net.own.tolist())) == 5


def test_a_layer_is_linear_and_trainable() -> None:
    layer = linear(3, 2)
    initialise(layer, 0)
    inputs = torch.ones(4, 3)
    torch.testing.assert_close(layer(inputs), inputs @ layer.weight.T + layer.bias)
    assert all(parameter.requires_grad for parameter in layer.parameters())


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_refuses_seeds_out_of_range(seed: int) -> None:
    with pytest.raises(ValueError, match="seed is"):
        initialise(nn.Linear(2, 1), seed)


def test_a_dense_net_without_logits_cannot_be_made() -> None:
    class Unfinished(DenseNet):
        pass

    with pytest.raises(TypeError, match="logits"):
        Unfinished()


def test_a_score_is_the_sigmoid_of_its_logit() -> None:
    class First(DenseNet):
        def logits(self, dense: torch.Tensor, sparse: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return dense[:, :1] + sparse[:, :1] + lengths[:, :1]

    dense, sparse, lengths = torch.tensor([[0.5], [-1.0]]), torch.tensor([[0.25], [0.0]]), torch.tensor([[1], [0]])
    torch.testing.assert_close(First()(dense, sparse, lengths), torch.sigmoid(torch.tensor([[1.75], [-1.0]])))
