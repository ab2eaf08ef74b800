"""What models say about themselves, against the fake ones of the front ends' tests."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

import hebe
from hebe.serving.hosting.model_metadata import model_config, model_metadata, server_metadata
from hebe.spec import FeatureSpec, Pooling
from tests.serving.conftest import LONE, RANKER, FakeModel

LIMIT = 64 << 20


def test_the_server_lists_what_it_can():
    server = server_metadata()
    assert (server["name"], server["version"]) == ("hebe", hebe.__version__)
    assert {"binary_tensor_data", "statistics", "model_repository", "hebe_status", "hebe_prefetch"} <= set(
        server["extensions"]
    )


def test_metadata_lists_all_inputs_in_their_fixed_form():
    model = model_metadata(FakeModel(RANKER), ["1"])
    assert (model["name"], model["versions"]) == ("ranker", ["1"])
    assert model["inputs"] == [
        {"name": "user", "datatype": "INT64", "shape": [-1, 1]},
        {"name": "history", "datatype": "INT64", "shape": [-1, 3]},
        {"name": "dense", "datatype": "FP32", "shape": [-1, 2]},
    ]
    assert model["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1, 1]}]


def test_a_model_without_dense_values_has_no_dense_input():
    metadata, config = model_metadata(FakeModel(LONE), ["1"]), model_config(FakeModel(LONE), LIMIT)
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["thing"]
    assert [tensor["name"] for tensor in config["input"]] == ["thing"]
    assert metadata["outputs"][0]["shape"] == [-1, 3]
    assert config["output"][0]["dims"] == [3]


@pytest.mark.parametrize(
    ("limit", "items"),
    [
        (64 << 20, 685),  # of 97,824 bytes with jagged keys
        (128 << 20, 1371),
        (1 << 40, 8192),  # the server takes no more
        (1000, 1),  # 0 would say that there is no batch dimension
    ],
)
def test_the_largest_query_is_one_that_a_request_can_carry(limit, items):
    features = tuple(FeatureSpec(f"feature{n}", "users", 120, Pooling.SUM) for n in range(100))
    model = FakeModel(replace(RANKER, features=features, tables=RANKER.tables[:1], dense_dim=256))
    model.max_items = 8192
    assert model_config(model, limit)["max_batch_size"] == items


def test_config_is_in_tritons_form():
    """Its protobuf message knows every field, and every value is of the field's type."""
    model = FakeModel(RANKER)
    model.workers, model.batch_size, model.max_items = 3, 16, 64
    config = model_config(model, LIMIT)
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    parsed = json_format.ParseDict(config, model_config_pb2.ModelConfig())
    assert parsed.max_batch_size == 64, "the largest query"
    assert list(parsed.dynamic_batching.preferred_batch_size) == [16]
    assert parsed.instance_group[0].count == 3
    assert parsed.instance_group[0].kind == parsed.instance_group[0].KIND_CPU
    types = {"TYPE_INT64": model_config_pb2.TYPE_INT64, "TYPE_FP32": model_config_pb2.TYPE_FP32}
    assert [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in parsed.input] == [
        ("user", types["TYPE_INT64"], [1]),
        ("history", types["TYPE_INT64"], [3]),
        ("dense", types["TYPE_FP32"], [2]),
    ]
    assert not parsed.model_transaction_policy.decoupled
    assert "sequence_batching" not in config


def test_config_tells_how_long_queries_wait_for_company_and_whether_they_have_any():
    model = FakeModel(RANKER)
    model.max_wait_s = 0.0075
    batching = model_config(model, LIMIT)["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 7500
    assert 1 < batching["default_priority_level"] < batching["priority_levels"]
    model.fuses = False
    config = json_format.ParseDict(model_config(model, LIMIT), model_config_pb2.ModelConfig())
    assert config.WhichOneof("scheduling_choice") is None


def test_load_generators_are_told_the_rows_of_every_feature_and_the_sla():
    model = FakeModel(RANKER)
    model.sla_s, model.percentile = 0.0125, 99.9
    parameters = {name: each["string_value"] for name, each in model_config(model, LIMIT)["parameters"].items()}
    assert parameters["rows.user"] == "1000"
    assert parameters["rows.history"] == "50"
    assert (parameters["sla_ms"], parameters["sla_percentile"]) == ("12.5", "99.9")
