"""A request whose JSON header came before is read as if it were the first."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.query import Batch, JaggedKeys, Query, SubQuery
from hebe.runtime.loaded_model import LoadedModel
from hebe.serving.http.infer_codec import decode_infer, parse_infer_document
from hebe.serving.requests.errors import InvalidInput, QueryRefused
from hebe.serving.requests.memo import _MOST_SEEN, MOST_HEADER_BYTES, BufferLayout, KnownHeaders, Repeated
from hebe.serving.requests.query_decoder import QueryDecoder
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, OutOfRange, Pooling
from tests.serving.http_requests import DENSE, HISTORY, USER, HalfSent, binary_input, binary_request, error_of

from .small_model import DECODER, SPEC

DATATYPES = {"int64": "INT64", "float32": "FP32"}


def arrays(items, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "three": rng.integers(0, 7, (items, 3)),
        "dense": rng.random((items, 2), np.float32),
        "one": rng.integers(0, 100, (items, 1)),
    }


def message(tensors, **fields):
    """(header, buffer) of a request."""
    header = json.dumps({"inputs": [binary_input(name, each) for name, each in tensors.items()], **fields}).encode()
    return memoryview(header), memoryview(b"".join(each.tobytes() for each in tensors.values()))


def read(known, header, buffer, decoder=DECODER):
    """As a front end does: (query, `InferRequest`, was known). Raises `InvalidInput`."""
    text = bytes(header)
    before = known.find(text)
    if before is not None and before.is_of(decoder):
        asked = before.read(buffer, len(buffer), 1.5)
        if asked is not None:
            assert before.items == asked.decoded.items
            return asked.decoded, asked, True
    infer = decode_infer("m", "", parse_infer_document(header, len(header)), buffer, 1.5)
    ends = np.cumsum([0, *(tensor.values.nbytes for tensor in infer.request.tensors)])
    if ends[-1] == len(buffer) and known.comes_again(text, decoder):
        known.keep(text, infer.request, ends[:-1].tolist(), len(buffer), decoder, binary=infer.binary)
    return decoder.decode(infer.request.tensors), infer.request, False


def known_after(times, *sent, decoder=DECODER):
    known = KnownHeaders()
    for _ in range(times):
        read(known, *sent, decoder=decoder)
    return known


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.permutations(["one", "three", "dense"]), st.data())
def test_the_query_is_the_one_that_was_sent(items, order, data):
    known = known_after(2, *message({name: arrays(items)[name] for name in order}, id="x"))
    tensors = {name: arrays(items, seed=1)[name] for name in order}
    name = data.draw(st.sampled_from(order))
    ends = [np.nan, np.inf, 0.0, -1.5] if name == "dense" else [-1, 0, 6, 7, 99, 100, 2**63 - 1, -(2**63)]
    tensors[name][data.draw(st.integers(0, items - 1)), 0] = data.draw(st.sampled_from(ends))
    sent = message(tensors, id="x")
    plain = refusal = None
    try:
        plain = DECODER.decode(decode_infer("m", "", json.loads(bytes(sent[0])), sent[1], 1.5).request.tensors)
    except InvalidInput as fault:
        refusal = str(fault)
    if plain is None:
        with pytest.raises(InvalidInput) as raised:
            read(known, *sent)
        assert str(raised.value) == refusal
        return
    query, asked, was_known = read(known, *sent)
    assert was_known
    assert (asked.request_id, asked.arrival_s, asked.outputs) == ("x", 1.5, None)
    assert query.items == plain.items == items
    assert query.described is not None
    for feature in ("one", "three"):
        assert np.array_equal(query.features[feature], plain.features[feature])
    assert np.array_equal(query.dense, plain.dense)


def test_what_a_header_asks_for_is_kept_with_it():
    fields = {"parameters": {"priority": 3, "binary_data_output": True}, "outputs": [{"name": "score"}]}
    sent = message(arrays(4), **fields)
    known = known_after(2, *sent)
    _, asked, was_known = read(known, *sent)
    assert was_known
    assert known.find(bytes(sent[0])).binary
    assert (asked.parameters, asked.outputs) == (fields["parameters"], ["score"])
    assert known.find(b"{}") is None


def test_a_buffer_of_another_size_is_refused_as_ever():
    header, buffer = message(arrays(4))
    known = known_after(3, header, buffer)
    for other, said in ((buffer[:-1], "bytes of the body are left"), (memoryview(bytes(buffer) + b"x"), "more than")):
        with pytest.raises(InvalidInput, match=said):
            read(known, header, other)
    assert read(known, header, buffer)[2]


def jagged(items):
    values, lengths = np.zeros(2 * items, np.int64), np.full(items, 2)
    return {
        **{k: v for k, v in arrays(items).items() if k != "three"},
        "three.values": values,
        "three.lengths": lengths,
    }


def test_what_is_not_all_raw_and_fixed_is_read_anew_each_time():
    sent = message(jagged(3))
    known = known_after(3, *sent)
    query, _, was_known = read(known, *sent)
    assert not was_known
    assert isinstance(query.features["three"], JaggedKeys)
    tensors = arrays(3)
    one = tensors.pop("one")
    listed = [binary_input(name, each) for name, each in tensors.items()]
    listed.append({"name": "one", "datatype": "INT64", "shape": [3, 1], "data": one.reshape(-1).tolist()})
    header = memoryview(json.dumps({"inputs": listed}).encode())
    buffer = memoryview(b"".join(each.tobytes() for each in tensors.values()))
    known = known_after(3, header, buffer)
    query, _, was_known = read(known, header, buffer)
    assert not was_known
    assert np.array_equal(query.features["one"], one)
    sent = message(arrays(3), parameters={"note": "x" * MOST_HEADER_BYTES})
    assert not read(known_after(3, *sent), *sent)[2]


def test_keys_that_are_to_be_brought_into_range_are():
    feature = FeatureSpec("one", "a", 1, Pooling.SUM, out_of_range=OutOfRange.WRAP)
    decoder = QueryDecoder(ModelSpec("m", "dlrm", (EmbeddingTableSpec("a", 100, 4),), (feature,)), 20)
    header, buffer = message({"one": np.array([[205], [-1]])})
    known = known_after(3, header, buffer, decoder=decoder)
    query, _, was_known = read(known, header, buffer, decoder)
    assert not was_known
    assert query.features["one"].tolist() == [[5], [99]]


def test_a_wrong_header_is_never_learnt():
    header, buffer = message({k: v for k, v in arrays(3).items() if k != "one"})
    known = KnownHeaders()
    for _ in range(4):
        with pytest.raises(InvalidInput, match="missing"):
            read(known, header, buffer)


def test_a_model_that_was_loaded_anew_has_headers_of_its_own():
    sent = message(arrays(3))
    known = known_after(3, *sent)
    narrow = QueryDecoder(replace(SPEC, tables=(replace(SPEC.tables[0], rows=2), SPEC.tables[1])), 20)
    for was_known in (False, True, True):
        query, _, was = read(known, *message(arrays(3) | {"one": np.array([[0], [1], [1]])}), decoder=narrow)
        assert was is was_known
    with pytest.raises(InvalidInput, match="key 2 of item 1 is out of range"):
        read(known, *message(arrays(3) | {"one": np.array([[0], [2], [1]])}), decoder=narrow)
    assert query.described is not None


def test_an_empty_header_is_no_header():
    header, buffer = message(arrays(3))
    infer = decode_infer("m", "", parse_infer_document(header, len(header)), buffer, 1.5)
    known = KnownHeaders()
    for _ in range(3):
        if known.comes_again(b"", DECODER):
            known.keep(b"", infer.request, [0, 72, 96], len(buffer), DECODER, binary=True)
    assert known.find(b"") is None


@pytest.mark.parametrize("repeats", [1, 4])
def test_over_grpc_too(front_ends, scores_of, repeats):
    model = front_ends.host.models["ranker"]
    arrays = {"user": USER, "history": HISTORY, "dense": DENSE}
    inputs = [
        tritonclient.grpc.InferInput(name, each.shape, DATATYPES[each.dtype.name]) for name, each in arrays.items()
    ]
    for each, array in zip(inputs, arrays.values(), strict=True):
        each.set_data_from_numpy(array)
    with tritonclient.grpc.InferenceServerClient(front_ends.grpc_url) as client:
        for _ in range(repeats):
            answer = client.infer("ranker", inputs, client_timeout=5.0)
            assert np.array_equal(answer.as_numpy("score"), scores_of(model.spec, model.queries[0]))
        assert [query.described is not None for query in model.queries] == [number > 1 for number in range(repeats)]
        inputs[0].set_data_from_numpy(USER + 990)
        with pytest.raises(tritonclient.utils.InferenceServerException, match="'user': key 1001 of item 1 is out of"):
            client.infer("ranker", inputs)
        inputs[0].set_data_from_numpy(USER)
        del front_ends.host.models["ranker"]
        with pytest.raises(tritonclient.utils.InferenceServerException, match="ranker"):
            client.infer("ranker", inputs)


def test_a_request_that_repeats_itself_is_answered_alike(front_ends, scores_of):
    model = front_ends.host.models["ranker"]
    answers = [binary_request(front_ends) for _ in range(4)]
    assert {(status, body) for status, _, body in answers} == {(200, answers[0][2])}
    assert [query.described is not None for query in model.queries] == [False, False, True, True]
    assert np.array_equal(scores_of(model.spec, model.queries[0]), scores_of(model.spec, model.queries[3]))
    keys = USER.copy()
    keys[2] = 1000
    refused = binary_request(front_ends, {"user": keys, "history": HISTORY, "dense": DENSE})
    assert "input 'user': key 1000 of item 2 is out of range" in error_of(refused, 400)
    model.refuses = QueryRefused("deadline", "overloaded")
    half = HalfSent(front_ends)
    assert "overloaded" in error_of(half.answer(), 503)
    half.connection.close()


def test_what_was_known_of_a_version_goes_with_it(front_ends):
    for _ in range(3):
        assert binary_request(front_ends)[0] == 200
    model = front_ends.host.models["ranker"]
    decoder = weakref.ref(front_ends.data_plane.decoder("ranker", ""))
    del front_ends.host.models["ranker"]
    front_ends.data_plane.model_unloaded(model)
    gc.collect()
    assert decoder() is None


def test_only_what_comes_again_is_worth_keeping():
    repeated: Repeated[int] = Repeated(most=2, most_bytes=3)
    assert [repeated.comes_again(text) for text in (b"a", b"b", b"a")] == [False, False, True]
    assert repeated.find(b"a") is None
    repeated.keep(b"a", 1)
    assert repeated.find(b"a") == 1
    assert not repeated.comes_again(b"a")  # it is kept already
    repeated.forget(b"a")
    repeated.forget(b"b")
    assert repeated.find(b"a") is None
    assert repeated.comes_again(b"a")
    repeated.keep(b"a", 1)
    assert not any(repeated.comes_again(b"long") for _ in range(3))


def test_the_oldest_goes_where_there_is_no_more_room():
    repeated: Repeated[int | None] = Repeated(most=2, most_bytes=3)
    for value, text in enumerate((b"a", b"b", b"c")):
        repeated.keep(text, value)
    assert [repeated.find(text) for text in (b"a", b"b", b"c")] == [None, 1, 2]
    assert len(repeated) == 2


def test_what_came_once_is_forgotten_in_the_end():
    repeated: Repeated[int] = Repeated(most=2, most_bytes=8)
    assert not any(repeated.comes_again(b"%d" % number) for number in range(3 * _MOST_SEEN))
    assert len(repeated._seen) <= _MOST_SEEN
    assert not repeated.comes_again(b"0")


def laid_out(model, query, lead):
    """The query's tensors in one buffer behind `lead` bytes, and the layout."""
    parts = {feature.name: query.features[feature.name].tobytes() for feature in reversed(model.spec.features)}
    if query.dense is not None:
        parts["dense"] = query.dense.tobytes()
    starts, at = {}, lead
    for name, part in parts.items():
        starts[name] = at
        at += len(part)
    buffer = memoryview(bytearray(bytes(lead) + b"".join(parts.values())))
    return buffer, BufferLayout(model.spec, query.items, starts, starts.get("dense", 0))


@pytest.mark.parametrize("name", ["dlrm-rmc1", "din"])
@pytest.mark.parametrize("lead", [0, 3])
def test_a_query_that_was_found_scores_as_one_whose_arrays_were_given(repository, name, lead):
    model = LoadedModel.load(repository, name)
    executor = model.new_executor(64)
    query = model.random_query(30, seed=4)
    buffer, layout = laid_out(model, query, lead)
    found = layout.find(buffer)
    assert found is not None
    same = Query(1, 30, 0.0, features=found.features, dense=found.dense, described=found.described)
    for feature in model.spec.features:
        assert np.array_equal(found.features[feature.name], query.features[feature.name])
    cut = [SubQuery(query, 11, 30), SubQuery(same, 0, 7), SubQuery(same, 11, 30)]
    scores = executor.run(Batch(0, tuple(cut), 45)).scores
    assert np.array_equal(scores[:19], scores[26:45])
    alone = executor.run(Batch(0, (SubQuery(query, 0, 7),), 7)).scores
    assert np.allclose(scores[19:26], alone, atol=1e-6)
    model.close()


def test_what_a_model_would_refuse_is_not_found(repository):
    model = LoadedModel.load(repository, "dlrm-rmc1")
    query = model.random_query(5)
    buffer, layout = laid_out(model, query, 0)
    feature = model.spec.features[0]
    rows = model.spec.table(feature.table).rows
    found = layout.find(buffer)
    for key, is_found in ((rows - 1, True), (rows, False), (-1, False), (0, True)):
        found.features[feature.name][4, 0] = key  # a view of the buffer
        assert (layout.find(buffer) is not None) is is_found
    found.dense[2, 1] = np.inf
    assert layout.find(buffer) is None
    with pytest.raises(ValueError, match="outside of"):
        layout.find(buffer[:-1])
    model.close()
