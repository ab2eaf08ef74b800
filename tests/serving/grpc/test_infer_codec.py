"""Splitting the tensors off a request must never change what the protobuf parser would have read."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from hebe.serving.grpc.infer_codec import parameters_of, split_raw_contents
from hebe.serving.grpc.protocol import message
from hebe.serving.requests.errors import InvalidInput

REQUEST = message("ModelInferRequest")


def split(data: bytes, most_fields: int = 50) -> tuple[bytes, list[bytes]]:
    rest, lie = split_raw_contents(data, most_fields)
    return rest, [data[each] for each in lie]


def request(raw: list[bytes], name: str = "m", request_id: str = "") -> bytes:
    made = REQUEST(model_name=name, id=request_id, raw_input_contents=raw)
    for index in range(len(raw)):
        made.inputs.add(name=f"input{index}", datatype="INT64", shape=[index, 2])
    made.parameters["priority"].int64_param = 3
    return made.SerializeToString()


@given(st.lists(st.binary(max_size=300), max_size=5), st.text(max_size=200), st.text(max_size=5))
def test_rest_and_raw_contents_are_what_was_sent(raw, name, request_id):
    data = request(raw, name, request_id)
    rest, contents = split(data)
    whole, parsed = REQUEST.FromString(data), REQUEST.FromString(rest)
    assert contents == raw
    assert not parsed.raw_input_contents
    parsed.raw_input_contents.extend(raw)
    assert parsed == whole


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_means_what_the_parser_reads(data):
    try:
        rest, contents = split(data, 1000)
    except InvalidInput:
        return
    try:
        whole = REQUEST.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            REQUEST.FromString(rest)
        return
    parsed = REQUEST.FromString(rest)
    parsed.raw_input_contents.extend(contents)
    assert parsed.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


UNKNOWN_FIELDS = [b"\xa0\x06\xff\x01", b"\xa1\x06" + bytes(8), b"\xa5\x06" + bytes(4), b"\xa2\x06\x01x"]


@pytest.mark.parametrize("unknown", UNKNOWN_FIELDS)
def test_fields_of_other_versions_of_the_protocol_are_read_over(unknown):
    data = request([b"x" * 300])
    rest, (raw,) = split(unknown + data + unknown)
    assert raw == b"x" * 300
    assert REQUEST.FromString(rest).model_name == "m"


@pytest.mark.parametrize("unknown", [*UNKNOWN_FIELDS, b"\x0b\x0c"])
def test_a_field_that_is_cut_off_or_a_group_is_refused(unknown):
    with pytest.raises(InvalidInput, match="malformed at byte"):
        split_raw_contents(unknown[:-1], 50)


def test_truncated_requests_are_refused():
    data = request([b"x" * 1000])
    for length in range(1, len(data), 7):
        try:
            rest, _ = split_raw_contents(data[:length], 50)
        except InvalidInput:
            continue
        assert REQUEST.FromString(rest)


@pytest.mark.parametrize("field", [b"\x3a\x00", b"\x2a\x00", b"\xa0\x06\x00"])
def test_fields_are_not_read_beyond_their_number(field):
    split_raw_contents(field * 50, 50)
    with pytest.raises(InvalidInput, match="the message has more than 50 fields"):
        split_raw_contents(field * 51, 50)
    # However many there are, no more than these are looked at: malformed ones further on are not found.
    with pytest.raises(InvalidInput, match="the message has more than 50 fields"):
        split_raw_contents(field * 51 + b"\x0b", 50)


def test_parameters_are_not_read_beyond_their_number():
    load = message("RepositoryModelLoadRequest")()
    for number in range(65):
        load.parameters[str(number)].bool_param = True
    with pytest.raises(InvalidInput, match="there are 65 parameters; at most 64 are taken"):
        parameters_of(load.parameters)
    del load.parameters["0"]
    assert len(parameters_of(load.parameters)) == 64
