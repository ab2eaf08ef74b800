"""Splitting the tensors off a request must never change what the protobuf parser would have read."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from hebe.serving.grpc_infer import split_raw_contents
from hebe.serving.protocol import message

REQUEST = message("ModelInferRequest")


def request(raw: list[bytes], name: str = "m", request_id: str = "") -> bytes:
    made = REQUEST(model_name=name, id=request_id, raw_input_contents=raw)
    for index in range(len(raw)):
        made.inputs.add(name=f"input{index}", datatype="INT64", shape=[index, 2])
    made.parameters["priority"].int64_param = 3
    return made.SerializeToString()


@given(st.lists(st.binary(max_size=300), max_size=5), st.text(max_size=200), st.text(max_size=5))
def test_rest_and_raw_contents_are_what_was_sent(raw, name, request_id):
    data = request(raw, name, request_id)
    rest, contents = split_raw_contents(data)
    whole, parsed = REQUEST.FromString(data), REQUEST.FromString(rest)
    assert [bytes(view) for view in contents] == raw
    assert not parsed.raw_input_contents
    parsed.raw_input_contents.extend(raw)
    assert parsed == whole


@given(st.binary(max_size=200))
def test_garbage_is_left_to_the_parser(data):
    rest, contents = split_raw_contents(data)
    try:
        whole = REQUEST.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            REQUEST.FromString(rest)
        return
    parsed = REQUEST.FromString(rest)
    parsed.raw_input_contents.extend(bytes(view) for view in contents)
    assert parsed.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def test_truncated_requests_are_left_to_the_parser():
    data = request([b"x" * 1000])
    for length in range(1, len(data), 7):
        assert split_raw_contents(data[:length]) == (data[:length], []) or REQUEST.FromString(data[:length])


def test_views_point_into_the_received_bytes():
    data = request([b"abcdefgh" * 100])
    _, (view,) = split_raw_contents(data)
    assert view.obj is data
