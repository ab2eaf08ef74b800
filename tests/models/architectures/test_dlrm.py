from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hebe.models.architectures.build import build_dense_net
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SpecError

Make = Callable[..., Any]


def mlp(weights: dict[str, Tensor], prefix: str, x: Tensor, relu_last: bool) -> Tensor:
    """Layers `prefix.layers.0, .2, ...` of a state dict applied to one vector."""
    indices = sorted({int(name.split(".")[-2]) for name in weights if name.startswith(f"{prefix}.layers.")})
    for i in indices:
        x = weights[f"{prefix}.layers.{i}.weight"] @ x + weights[f"{prefix}.layers.{i}.bias"]
        if relu_last or i != indices[-1]:
            x = x.clamp(min=0)
    return x


def test_dot_interaction_is_all_pairs_of_vectors(
    small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make
) -> None:
    spec = small_spec("dlrm-dot")
    net = build_dense_net(spec)
    shake(net)
    weights = net.state_dict()

    def per_item(dense: Tensor, sparse: Tensor, _lengths: Tensor) -> Tensor:
        bottom = mlp(weights, "bottom", dense, relu_last=True)
        vectors = [bottom, *sparse.split(8)]
        products = [torch.dot(vectors[i], vectors[j]) for i in range(4) for j in range(i)]
        return mlp(weights, "top.tower", torch.cat((bottom, torch.stack(products))), relu_last=False)

    same_rows(net, inputs_for(spec, 6), per_item)


def test_concat_interaction_puts_vectors_side_by_side(
    small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make
) -> None:
    spec = small_spec("dlrm-concat")
    net = build_dense_net(spec)
    shake(net)
    weights = net.state_dict()

    def per_item(dense: Tensor, sparse: Tensor, _lengths: Tensor) -> Tensor:
        bottom = mlp(weights, "bottom", dense, relu_last=True)
        return mlp(weights, "top.tower", torch.cat((bottom, sparse)), relu_last=False)

    same_rows(net, inputs_for(spec, 6), per_item)


def test_without_dense_features_the_pooled_embeddings_interact_alone(
    small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make
) -> None:
    spec = replace(small_spec("dlrm-dot"), dense_dim=0, towers={"top": (5, 1)})
    net = build_dense_net(spec)
    shake(net)
    weights = net.state_dict()

    def per_item(_dense: Tensor, sparse: Tensor, _lengths: Tensor) -> Tensor:
        a, b, c = sparse.split(8)
        return mlp(weights, "top.tower", torch.stack((a @ b, a @ c, b @ c)), relu_last=False)

    same_rows(net, inputs_for(spec, 6), per_item)


def test_one_output_may_be_a_softmax_over_two_classes(small_spec: Make, inputs_for: Make) -> None:
    spec = replace(small_spec("dlrm-dot"), towers={"bottom": (9, 8), "top": (12, 2)})
    net = build_dense_net(spec, seed=5)
    classes: list[Tensor] = []
    net.top.tower.register_forward_hook(lambda _module, _inputs, output: classes.append(output))
    with torch.no_grad():
        scores = net(*inputs_for(spec, 6))
    torch.testing.assert_close(scores[:, 0], torch.softmax(classes[0], 1)[:, 1])


def spec_of(dims: list[int], **fields: Any) -> ModelSpec:
    return ModelSpec(
        "m",
        "dlrm",
        tuple(EmbeddingTableSpec(f"t{i}", 9, dim) for i, dim in enumerate(dims)),
        tuple(FeatureSpec(f"f{i}", f"t{i}", 2, Pooling.SUM) for i in range(len(dims))),
        **fields,
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (spec_of([4, 8], towers={"top": (1,)}), "feature f1 has dim 8 but f0 has 4"),
        (spec_of([4], dense_dim=2, towers={"bottom": (5,), "top": (1,)}), r"towers\.bottom ends in 5 .* dim 4"),
        (spec_of([4], towers={"top": (1,)}), "one vector only"),
        (spec_of([4, 4], towers={"top": (3,)}), r"towers\.top ends in 3: must end in .* 1 \(or in 2"),
        (spec_of([4, 4], towers={"top": (3,)}, outputs=2), r"towers\.top ends in 3: must end in .* 2"),
        (spec_of([4, 4], towers={"top": (1,)}, settings={"interaction": "cat"}), r"'cat': must be one of dot, concat"),
        (spec_of([4, 4], towers={"bottom": (4,), "top": (1,)}), r"towers\.bottom is not read"),
    ],
)
def test_names_what_does_not_fit(spec: ModelSpec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build_dense_net(spec)


def test_refuses_attention_pooling(small_spec: Make) -> None:
    spec = small_spec("dlrm-dot")
    features = (replace(spec.features[0], pooling=Pooling.ATTENTION), *spec.features[1:])
    with pytest.raises(SpecError, match="feature a: pooling 'attention' is not computed by dlrm"):
        build_dense_net(replace(spec, features=features))
