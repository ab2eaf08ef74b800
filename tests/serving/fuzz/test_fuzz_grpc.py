"""Whatever is sent over gRPC: a status in time, never INTERNAL or UNKNOWN, and the next query unharmed.

A request that ever broke something belongs into `corpus/grpc`, as METHOD.what-is-wrong; all files there are replayed.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hebe.serving.grpc.infer_codec import decode_infer
from hebe.serving.grpc.protocol import SERVICE, message, methods
from hebe.serving.requests.errors import RequestError

CORPUS = sorted((Path(__file__).parent / "corpus" / "grpc").iterdir())


def fuzz(examples: int) -> settings:
    """Settings for `examples` of whatever size and time."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


UNARY = sorted(set(methods()) - {"ModelStreamInfer"})

NAMES = st.sampled_from(
    ["user", "history", "history.values", "history.lengths", "dense", "score", "", "\x00", "nobody"]
)
DATATYPES = st.sampled_from(["INT64", "INT32", "FP32", "FP64", "BOOL", "UINT64", "BYTES", "", "int64"])
SIZES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 6, 64, 65, 2**32, 2**62])
INTEGERS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def infer_parameters(draw):
    choice = draw(st.sampled_from(["bool_param", "int64_param", "string_param", "double_param", "uint64_param", ""]))
    values = {
        "bool_param": True,
        "int64_param": draw(INTEGERS),
        "string_param": draw(st.text(max_size=5)),
        "double_param": draw(st.floats()),
        "uint64_param": 2**64 - 1,
    }
    return message("InferParameter")(**({choice: values[choice]} if choice else {}))


PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "priority", "sequence_id", "max_defaulted_fraction", "shared_memory_region", "x"]),
    infer_parameters(),
    max_size=2,
)


def fill(target, parameters):
    for name, value in parameters.items():
        target[name].CopyFrom(value)


@st.composite
def requests(draw):
    """A ModelInferRequest that may be good in every part, and seldom is in all."""
    model = draw(st.sampled_from(["ranker", "ranker", "lone", "nothing"]))
    request = message("ModelInferRequest")(model_name=model, id=draw(st.text(max_size=5)))
    request.model_version = draw(st.sampled_from(["", "", "1", "2", "x"]))
    fill(request.parameters, draw(PARAMETERS))
    good = [("user", "INT64", [2, 1]), ("history", "INT64", [2, 3]), ("dense", "FP32", [2, 2])]
    chosen = draw(st.lists(st.tuples(NAMES, DATATYPES, st.lists(SIZES, max_size=3)), max_size=3)) or good
    raw = draw(st.booleans())
    for name, datatype, shape in chosen:
        entry = request.inputs.add(name=name, datatype=datatype, shape=shape)
        fill(entry.parameters, draw(PARAMETERS))
        if raw:
            count = int(np.prod([min(max(size, 0), 70) for size in shape], dtype=np.int64)) % 5000
            width = 4 if datatype in ("FP32", "INT32") else 8
            data = bytes(count * width) + draw(st.sampled_from([b"", b"", b"\x01", b"\xff" * 8]))
            request.raw_input_contents.append(data)
        else:
            contents = entry.contents
            contents.int64_contents.extend(draw(st.lists(INTEGERS | st.integers(0, 9), max_size=6)))
            contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=4)))
    for name in draw(st.lists(NAMES, max_size=2)):
        fill(request.outputs.add(name=name).parameters, draw(PARAMETERS))
    return request


@fuzz(300)
@given(requests())
def test_decoding_raises_nothing_but_request_errors(request_):
    text = "fine"
    try:
        decode_infer(request_, 0.0)
    except RequestError as error:
        text = error.message
    assert 0 < len(text) < 1000


@pytest.fixture(scope="module")
def channel(serve_for_module):
    with grpc.insecure_channel(serve_for_module().grpc_url) as channel:
        yield channel


def good_request():
    request = message("ModelInferRequest")(model_name="lone")
    request.inputs.add(name="thing", datatype="INT64", shape=[1, 2])
    request.raw_input_contents.append(np.array([1, 2]).tobytes())
    return request.SerializeToString()


def check(channel, method, data):
    """`data` gets a proper status, and the next query is answered."""
    code, details = grpc.StatusCode.OK, "fine"
    try:
        channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=5)
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), details
    assert code is not grpc.StatusCode.DEADLINE_EXCEEDED or b"timeout" in data, "no answer within 5 s"
    assert details
    response = channel.unary_unary(f"/{SERVICE}/ModelInfer")(good_request(), timeout=5)
    assert message("ModelInferResponse").FromString(response).raw_output_contents


@fuzz(120)
@given(requests())
def test_malformed_requests(channel, request_):
    check(channel, "ModelInfer", request_.SerializeToString())


@fuzz(120)
@given(requests(), st.data())
def test_damaged_bytes(channel, request_, data):
    damaged = bytearray(request_.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        if data.draw(st.booleans()) and at < len(damaged):
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del damaged[at : at + data.draw(st.integers(1, 30))]
    check(channel, "ModelInfer", bytes(damaged))


@fuzz(100)
@given(st.sampled_from(UNARY), st.binary(max_size=60))
def test_noise_to_every_method(channel, method, noise):
    check(channel, method, noise)


@fuzz(30)
@given(st.lists(requests().map(lambda r: r.SerializeToString()) | st.binary(max_size=30), max_size=6))
def test_streams(channel, data):
    """Every message of a stream has its answer, good or bad."""
    stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    assert len(list(stream(iter(data), timeout=5))) == len(data)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_the_corpus(channel, path):
    check(channel, path.name.partition(".")[0], path.read_bytes())
