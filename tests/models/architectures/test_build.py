from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from hebe.models.architectures.build import ARCHITECTURES, build_dense_net
from hebe.spec import ModelSpec, SpecError

Make = Callable[..., Any]


def test_every_architecture_is_tested_here(small_specs: dict[str, ModelSpec]) -> None:
    assert {spec.architecture for spec in small_specs.values()} == set(ARCHITECTURES)


def test_scores_are_probabilities_of_the_right_shape(any_spec: ModelSpec, inputs_for: Make) -> None:
    net = build_dense_net(any_spec, seed=3)
    with torch.no_grad():
        scores = net(*inputs_for(any_spec, 9))
    assert scores.shape == (9, any_spec.outputs)
    assert scores.dtype == torch.float32
    assert bool(((scores > 0) & (scores < 1)).all())
    assert scores.std() > 1e-4


def test_an_items_score_does_not_depend_on_its_batch(any_spec: ModelSpec, inputs_for: Make, shake: Make) -> None:
    net = build_dense_net(any_spec)
    shake(net)
    inputs = inputs_for(any_spec, 8)
    with torch.no_grad():
        together = net(*inputs)
        alone = torch.cat([net(*(part[i : i + 1] for part in inputs)) for i in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_traces_once_for_every_batch_size(any_spec: ModelSpec, inputs_for: Make) -> None:
    net = build_dense_net(any_spec, seed=3)
    # Only the deprecation of tracing is let through: a TracerWarning would be a shape baked into the trace.
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.freeze(torch.jit.trace(net, inputs_for(any_spec, 5)))
    for items in (1, 2, 33):
        inputs = inputs_for(any_spec, items, seed=items)
        with torch.no_grad():
            torch.testing.assert_close(traced(*inputs), net(*inputs), atol=1e-6, rtol=1e-5)


def test_exports_once_for_every_batch_size(any_spec: ModelSpec, inputs_for: Make) -> None:
    net = build_dense_net(any_spec, seed=3)
    items = torch.export.Dim("items", min=1)
    with torch.no_grad():
        program = torch.export.export(net, inputs_for(any_spec, 5), dynamic_shapes=({0: items}, {0: items}, {0: items}))
        exported = program.module()
        for count in (1, 33):
            inputs = inputs_for(any_spec, count, seed=count)
            torch.testing.assert_close(exported(*inputs), net(*inputs), atol=1e-6, rtol=1e-5)


def test_weights_come_from_the_seed_alone(any_spec: ModelSpec) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = build_dense_net(any_spec, seed=7).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    second = build_dense_net(any_spec, seed=7).state_dict()
    other = build_dense_net(any_spec, seed=8).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.isfinite(weight).all() for weight in first.values())
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_is_in_evaluation_mode_and_trainable(any_spec: ModelSpec, inputs_for: Make) -> None:
    net = build_dense_net(any_spec)
    assert not net.training
    net.train()
    net.logits(*inputs_for(any_spec, 6)).sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None for weight in net.parameters())


def test_names_a_tower_that_is_missing(any_spec: ModelSpec) -> None:
    for tower in any_spec.towers:
        if tower == "trunk":
            continue
        rest = {name: widths for name, widths in any_spec.towers.items() if name != tower}
        with pytest.raises(SpecError, match=rf"towers\.{tower} is missing"):
            build_dense_net(replace(any_spec, towers=rest))


def test_names_a_tower_or_setting_that_nothing_reads(any_spec: ModelSpec) -> None:
    with pytest.raises(SpecError, match=r"towers\.extra is not read"):
        build_dense_net(replace(any_spec, towers={**any_spec.towers, "extra": (3,)}))
    with pytest.raises(SpecError, match=r"settings\.extra is not read"):
        build_dense_net(replace(any_spec, settings={**any_spec.settings, "extra": 1}))


def test_refuses_unknown_and_imported_architectures(small_spec: Make) -> None:
    with pytest.raises(SpecError, match=r"architecture 'dlrn' is unknown; there are .*dlrm"):
        build_dense_net(replace(small_spec("dlrm-dot"), architecture="dlrn"))
    with pytest.raises(SpecError, match="stored beside its weights"):
        build_dense_net(replace(small_spec("dlrm-dot"), architecture="imported"))


@pytest.mark.parametrize("name", ["din", "dien", "bst"])
def test_padding_never_changes_a_score(small_spec: Make, inputs_for: Make, shake: Make, name: str) -> None:
    spec = small_spec(name)
    net = build_dense_net(spec)
    shake(net)
    dense, sparse, lengths = inputs_for(spec, 12)
    noisy = sparse.clone()
    for slot in spec.slots:
        if not slot.feature.pooling.reduces:
            for item in range(12):
                start = slot.column + int(lengths[item, 0]) * slot.dim
                noisy[item, start : slot.column + slot.width] = 1e3
    assert not torch.equal(sparse, noisy)
    with torch.no_grad():
        assert torch.equal(net(dense, sparse, lengths), net(dense, noisy, lengths))


@pytest.mark.parametrize("name", ["din", "dien", "bst"])
def test_every_valid_behaviour_changes_the_score(small_spec: Make, inputs_for: Make, shake: Make, name: str) -> None:
    spec = small_spec(name)
    net = build_dense_net(spec)
    shake(net)
    dense, sparse, lengths = inputs_for(spec, 2)
    history = next(slot for slot in spec.slots if slot.feature.name == "item_history")
    dense, sparse, lengths = dense[1:], sparse[1:], lengths[1:]
    with torch.no_grad():
        base = net.logits(dense, sparse, lengths)
        for step in range(history.feature.lookups):
            changed = sparse.clone()
            changed[0, history.column + step * history.dim] += 1.0
            assert float((net.logits(dense, changed, lengths) - base).abs()) > 1e-6
