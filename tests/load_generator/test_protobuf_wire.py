import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from hebe.load_generator.protobuf_wire import (
    WireError,
    delimited,
    fields,
    infer_request_head,
    model_request,
    parse_model_config,
    parse_model_metadata,
    raw_contents_head,
    varint,
)

NAMES = st.text(min_size=1, max_size=20)


@settings(deadline=None, max_examples=60)
@given(
    NAMES,
    st.text(max_size=5),
    st.dictionaries(st.text(min_size=1, max_size=8), st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.lists(
        st.tuples(NAMES, st.sampled_from(["INT64", "FP32"]), st.lists(st.integers(0, 2**40), max_size=3)), max_size=4
    ),
    st.binary(max_size=300),
)
def test_requests_are_what_the_generated_classes_read(model, version, parameters, inputs, raw):
    message = infer_request_head(model, version, parameters, inputs) + raw_contents_head(len(raw)) + raw
    request = service_pb2.ModelInferRequest.FromString(message)
    assert request.model_name == model
    assert request.model_version == version
    assert {name: value.int64_param for name, value in request.parameters.items()} == parameters
    assert [(t.name, t.datatype, list(t.shape)) for t in request.inputs] == inputs
    assert list(request.raw_input_contents) == [raw]


def test_model_requests():
    assert service_pb2.ModelMetadataRequest.FromString(model_request("dlrm", "3")) == service_pb2.ModelMetadataRequest(
        name="dlrm", version="3"
    )
    assert service_pb2.ModelConfigRequest.FromString(model_request("dlrm", "")).name == "dlrm"


def test_metadata_as_the_generated_classes_write_it():
    inputs = [
        service_pb2.ModelMetadataResponse.TensorMetadata(name="user", datatype="INT64", shape=[-1, 80]),
        service_pb2.ModelMetadataResponse.TensorMetadata(name="dense", datatype="FP32", shape=[-1, 2, 2**40]),
    ]
    message = service_pb2.ModelMetadataResponse(
        name="m", versions=["1"], platform="p", inputs=inputs, outputs=inputs[:1]
    ).SerializeToString()
    assert parse_model_metadata(message) == [
        {"name": "user", "datatype": "INT64", "shape": [-1, 80]},
        {"name": "dense", "datatype": "FP32", "shape": [-1, 2, 2**40]},
    ]


def test_configurations_as_the_generated_classes_write_them():
    config = model_config_pb2.ModelConfig(name="m", max_batch_size=7)
    config.parameters["rows.user"].string_value = "4000000"
    config.parameters["empty"].string_value = ""
    config.instance_group.add(count=2)
    message = service_pb2.ModelConfigResponse(config=config).SerializeToString()
    assert parse_model_config(message) == ({"rows.user": "4000000", "empty": ""}, 7)
    assert parse_model_config(b"") == ({}, 0)


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_numbers_survive(value):
    assert list(fields(varint(1 << 3) + varint(value))) == [(1, value)]


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(message):
    for parse in (parse_model_metadata, parse_model_config, lambda m: list(fields(m))):
        with contextlib.suppress(WireError):
            assert isinstance(parse(message), list | tuple)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (b"\x80", "ends within a number"),
        (b"\x0a\x05ab", "ends beyond"),
        (b"\x0b", "wire type 3"),
        (b"\x08" + b"\xff" * 10, "more than ten bytes"),
    ],
)
def test_broken_messages_are_named(message, complaint):
    with pytest.raises(WireError, match=complaint):
        list(fields(message))


def test_fixed_width_fields_are_passed_over():
    message = b"\x09" + bytes(8) + b"\x15" + bytes(4) + delimited(3, "end")
    assert [number for number, _ in fields(message)] == [1, 2, 3]


def test_raw_tensors_arrive_bit_by_bit():
    keys = np.arange(-3, 9, dtype="<i8").reshape(4, 3)
    message = (
        infer_request_head("m", "", {}, [("k", "INT64", (4, 3))]) + raw_contents_head(keys.nbytes) + keys.tobytes()
    )
    request = service_pb2.ModelInferRequest.FromString(message)
    np.testing.assert_array_equal(np.frombuffer(request.raw_input_contents[0], "<i8").reshape(4, 3), keys)
