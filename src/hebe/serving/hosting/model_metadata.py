"""What a model says about itself: the protocol's metadata, and Triton's model configuration in its JSON form.

Metadata lists every feature in its fixed form `[items, lookups]`; the jagged pair NAME.values and NAME.lengths is
accepted in its place. One item is one element of Triton's batch dimension, so `max_batch_size` is the largest query
that a request can carry.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hebe._version import __version__
from hebe.serving.requests.infer_request import DEFAULT_PRIORITY, MOST_PRIORITY
from hebe.serving.requests.query_decoder import DENSE, SCORE

if TYPE_CHECKING:
    from hebe.serving.hosting.hosted_model import HostedModel

PLATFORM = "hebe"

_REQUEST_BYTES, _INPUT_BYTES = 4096, 256
"""What a request has beside its tensors (id, parameters, outputs), and what describes one of them, its name apart."""

EXTENSIONS = (
    "binary_tensor_data",
    "hebe_prefetch",
    "hebe_status",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)


def server_metadata() -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": "hebe", "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(model: HostedModel, versions: list[str]) -> dict[str, Any]:
    """`GET /v2/models/NAME`: inputs, outputs, and the `versions` that are loaded."""
    spec = model.spec
    inputs = [{"name": feature.name, "datatype": "INT64", "shape": [-1, feature.lookups]} for feature in spec.features]
    if spec.dense_dim:
        inputs.append({"name": DENSE, "datatype": "FP32", "shape": [-1, spec.dense_dim]})
    return {
        "name": spec.name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": inputs,
        "outputs": [{"name": SCORE, "datatype": "FP32", "shape": [-1, spec.outputs]}],
    }


def model_config(model: HostedModel, max_request_bytes: int) -> dict[str, Any]:
    """`GET /v2/models/NAME/config`: the fields of Triton's `ModelConfig` that its clients read, and what is so here.

    64-bit whole numbers are JSON numbers, as Triton writes them. Its parameters tell load generators what the
    protocol does not: the rows that each feature's keys may name (`rows.FEATURE`), and the SLA.
    """
    spec = model.spec
    inputs = [_config_input(feature.name, "TYPE_INT64", feature.lookups) for feature in spec.features]
    if spec.dense_dim:
        inputs.append(_config_input(DENSE, "TYPE_FP32", spec.dense_dim))
    return {
        "name": spec.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": _largest_query(model, max_request_bytes),
        "input": inputs,
        "output": [
            {
                "name": SCORE,
                "data_type": "TYPE_FP32",
                "dims": [spec.outputs],
                "label_filename": "",
                "is_shape_tensor": False,
            }
        ],
        **_batching(model),
        "instance_group": [
            {
                "name": f"{spec.name}_0",
                "kind": "KIND_GPU" if model.on_gpu else "KIND_CPU",
                "count": model.workers,
                "gpus": [0] if model.on_gpu else [],
            },
        ],
        "default_model_filename": "",
        "metric_tags": {},
        "parameters": {
            "architecture": {"string_value": spec.architecture},
            "sla_ms": {"string_value": f"{model.sla_s * 1e3:g}"},
            "sla_percentile": {"string_value": f"{model.percentile:g}"},
            **{
                f"rows.{feature.name}": {"string_value": str(spec.table(feature.table).rows)}
                for feature in spec.features
            },
        },
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": False},
    }


def _batching(model: HostedModel) -> dict[str, Any]:
    """How queries are fused; nothing where each has batches of its own."""
    if not model.fuses:
        return {}
    return {
        "dynamic_batching": {
            "preferred_batch_size": [model.batch_size],
            "max_queue_delay_microseconds": round(model.max_wait_s * 1e6),
            "priority_levels": MOST_PRIORITY,
            "default_priority_level": DEFAULT_PRIORITY,
            "preserve_ordering": False,
        }
    }


def _largest_query(model: HostedModel, max_request_bytes: int) -> int:
    """Most items that are taken and fit into a request in every form with raw tensors: binary over HTTP or raw over
    gRPC, keys fixed or jagged. As text they may not.

    At least 1: with 0, a model has no batch dimension to Triton's clients.
    """
    spec = model.spec
    item_bytes = 8 * sum(feature.lookups + 1 for feature in spec.features) + 4 * spec.dense_dim
    names = [feature.name for feature in spec.features for _ in ("values", "lengths")] + [DENSE]
    described_bytes = _REQUEST_BYTES + sum(_INPUT_BYTES + len(json.dumps(name)) for name in names)
    return min(model.max_items, max((max_request_bytes - described_bytes) // item_bytes, 1))


def _config_input(name: str, data_type: str, width: int) -> dict[str, Any]:
    return {
        "name": name,
        "data_type": data_type,
        "format": "FORMAT_NONE",
        "dims": [width],
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
    }
