"""Heads of requests, and bodies in chunks: in any pieces, what frames a body is bounded as the body is."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.serving.http1.head import ChunkedBody, Heads, _Parser
from hebe.serving.requests.errors import ErrorKind, RequestError

HEAD = b"POST /v2/x?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 12 \r\nX: 1\r\nx: 2\r\n"


def test_a_head_is_read_alike_however_often_it_comes():
    heads = Heads()
    first, *others = [heads.read(HEAD + b"Inference-Header-Content-Length: 7\r\n\r\n") for _ in range(4)]
    assert (first.method, first.path, first.query, first.version) == ("POST", "/v2/x", "a=b", "1.1")
    assert first.headers[b"x"] == b"1, 2"
    assert (first.keep_alive, first.length, first.json_bytes) == (True, 12, 7)
    assert all(other == first for other in others)
    assert others[-1] is others[-2]  # not parsed again
    other = heads.read(HEAD + b"Inference-Header-Content-Length: 8\r\n\r\n")
    assert (other.json_bytes, first.json_bytes) == (8, 7)


@pytest.mark.parametrize("header", [b"", b"x", b"-1", b"99999999999999999999", b"0"])
def test_numbers_that_are_none(header):
    text = b"POST / HTTP/1.1\r\nInference-Header-Content-Length: %s\r\n\r\n" % header
    assert Heads().read(text).json_bytes == 0
    assert Heads().read(b"GET / HTTP/1.0\r\n\r\n")[-3:] == (False, 0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"nonsense\r\n\r\n", "not an HTTP/1.1 request"),
        (b"GET / HTTP/2.0\r\n\r\n", "HTTP/2.0 is not spoken here"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", "more than 100 headers"),
    ],
)
def test_what_is_no_head_is_refused_each_time(text, message):
    heads = Heads()
    for _ in range(3):
        with pytest.raises(RequestError, match=message):
            heads.read(text)


def test_a_path_with_a_host_before_it():
    assert _Parser().parse(b"GET http://h:80/p?q HTTP/1.1\r\n\r\n")[1:3] == ("/p", "q")


FRAMING = 4096


def chunked(data: bytes, size: int) -> bytes:
    """`data` in chunks of `size`."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n"


def taken(data: bytes, piece: int = 65536, most: int = 1 << 20) -> ChunkedBody:
    """A body that takes `data` in pieces, until it is complete."""
    body = ChunkedBody(most, FRAMING)
    for at in range(0, len(data), piece):
        before = len(body.joined)
        assert body.take(data[at : at + piece]) == len(body.joined) - before
        if body.complete:
            break
    return body


@given(st.binary(max_size=500), st.integers(1, 600), st.integers(1, 600))
def test_chunks_in_any_pieces_are_joined(data, size, piece):
    body = taken(chunked(data, size) + b"A: b\r\nAuthorization: c\r\n\r\n", piece)
    assert body.complete
    assert body.joined == data


def test_what_follows_without_waiting_is_not_part_of_the_body():
    first = chunked(b"mine", 4) + b"\r\n"
    for next_request in (b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nothers", b"\x00nonsense"):
        body = taken(first + next_request)
        assert body.complete
        assert body.joined == b"mine"


@pytest.mark.parametrize("broken", [b"zz\r\n", b"-1\r\nx", b"fffffffffffffffff\r\nx", b"2\r\nabc\r\n"])
def test_what_is_no_chunk_is_refused(broken):
    with pytest.raises(RequestError, match="malformed chunked body"):
        taken(broken)


def test_a_body_that_grows_too_large():
    with pytest.raises(RequestError, match="a chunked body exceeds the maximum request size of 999 bytes") as error:
        taken(chunked(bytes(1000), 100), 64, most=999)
    assert error.value.kind is ErrorKind.TOO_LARGE


def send(body: ChunkedBody, piece: bytes, size_bytes: int) -> None:
    for _ in range(size_bytes // len(piece)):
        body.take(piece)


START = b"2\r\nab\r\n"


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (START + b"0\r\nA: ", b"a" * 1000),
        (START + b"0\r\n", b"a: b\r\n" * 200),
        (START + b"2;", b"a" * 1000),
        (START, b"1\r\nx\r\n" * 200),
        (START, b"1;" + b"a" * 900 + b"\r\nx\r\n"),
        (START, b"1\r\nx\r\n" + b"1;" + b"a" * 900 + b"\r\nx\r\n"),
    ],
    ids=["a long trailer", "many trailers", "a long extension", "tiny chunks", "many extensions", "both"],
)
def test_framing_without_end_is_refused(start, more):
    body = ChunkedBody(1 << 20, FRAMING)
    body.take(start)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as error:
            send(body, more, 8 * FRAMING)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert error.value.kind is ErrorKind.HEAD_TOO_LARGE
    assert f"sizes, extensions and trailers of a chunked body exceed {FRAMING} bytes" in error.value.message


def test_trailers_behind_a_large_body_are_bounded_all_the_same():
    body = ChunkedBody(1 << 20, FRAMING)
    body.take(b"80000\r\n" + bytes(0x80000) + b"\r\n")
    body.take(b"0\r\nA: ")
    with pytest.raises(RequestError, match="sizes, extensions and trailers"):
        send(body, b"a" * 1000, 2 * FRAMING)


def test_a_large_trailer_takes_no_time():
    """Its pieces are not joined: with callbacks for headers, this took seconds."""
    body = ChunkedBody(1 << 20, 32 << 20)
    body.take(START + b"0\r\nA: ")
    began = time.process_time()
    send(body, b"a" * 65536, 30 << 20)
    assert time.process_time() - began < 1.0


def test_a_closed_body_keeps_its_bytes_without_the_parser():
    body = taken(chunked(b"abc", 3) + b"\r\n")
    body.close()
    assert body.joined == b"abc"
