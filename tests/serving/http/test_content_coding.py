from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.serving.http.content_coding import accepted_coding, compress, decompress
from hebe.serving.requests.errors import ErrorKind, RequestError


def raw_deflate(data):
    encoder = zlib.compressobj(wbits=-15)
    return encoder.compress(data) + encoder.flush()


CODERS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "GZIP": gzip.compress}


@pytest.mark.parametrize("coding", sorted(CODERS))
@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
async def test_what_was_packed_unfolds(coding, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert await decompress(memoryview(CODERS[coding](data)), coding, 1 << 20) == data


async def test_raw_deflate_is_understood_too():
    assert await decompress(memoryview(raw_deflate(b"hello" * 100)), "deflate", 1000) == b"hello" * 100


async def test_long_bodies_unfold_in_a_thread_alike():
    data = bytes(100_000) + bytes(range(256)) * 1000
    packed = zlib.compress(data, 0)
    assert await decompress(memoryview(packed), "deflate", 1 << 20) == data


@pytest.mark.parametrize("coding", ["", "identity"])
async def test_identity_leaves_the_body_alone(coding):
    body = memoryview(b"abc")
    assert await decompress(body, coding, 1) is body


async def test_a_bomb_is_refused_at_the_limit():
    bomb = gzip.compress(bytes(50_000_000))
    for most_bytes in (1000, 65_535, 65_536, 1_000_000):
        with pytest.raises(RequestError, match=f"more than the maximum of {most_bytes} bytes; try less") as error:
            await decompress(memoryview(bomb), "gzip", most_bytes, "; try less")
        assert error.value.kind is ErrorKind.TOO_LARGE


@pytest.mark.parametrize("size", [65_536, 65_537, 62 << 20])
async def test_what_is_short_and_unfolds_to_much_does_so_in_a_thread(monkeypatch, size):
    """So that nobody else waits for it: a bomb of 62 MiB has 63 KB."""
    packed = gzip.compress(bytes(size))
    assert len(packed) < 65_536
    loop = asyncio.get_running_loop()
    in_threads = []

    async def run_in_executor(_executor, work, *arguments):
        in_threads.append(arguments)
        return work(*arguments)

    monkeypatch.setattr(loop, "run_in_executor", run_in_executor)
    assert len(await decompress(memoryview(packed), "gzip", 62 << 20)) == size
    assert len(in_threads) == (size > 65_536)


@pytest.mark.parametrize(
    ("body", "coding", "message"),
    [
        (gzip.compress(b"a" * 100)[:-5], "gzip", "cut off"),
        (gzip.compress(b"a") + b"junk", "gzip", "followed by 4 bytes"),
        (gzip.compress(b"a") + gzip.compress(b"b"), "gzip", "has more than one member: compress it as one"),
        (b"not gzip", "gzip", "damaged"),
        (b"\xff\xff\xff", "deflate", "damaged"),
        (b"x", "br", "Content-Encoding 'br' is not supported; use gzip, deflate or identity"),
        (b"x", "gzip, gzip", "not supported"),
    ],
    ids=["cut", "trailing", "members", "not-gzip", "not-deflate", "unknown", "twice"],
)
async def test_damaged_or_unknown_codings(body, coding, message):
    with pytest.raises(RequestError, match=message):
        await decompress(memoryview(body), coding, 1000)


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, None), ("", None), ("gzip", "gzip"), ("deflate, GZIP;q=0.5", "gzip"), ("deflate", "deflate"),
        ("gzip;q=0, deflate", "deflate"), ("gzip; q=0", None), ("br", None), ("*", "gzip"), ("identity", None),
        ("gzip;q=0, *", None), ("*;q=0, gzip", "gzip"), ("*;q=0", None),
    ],
)  # fmt: skip
def test_what_a_client_accepts(header, coding):
    assert accepted_coding(header) == coding


@given(st.binary(max_size=5000), st.sampled_from(["gzip", "deflate"]))
def test_compressed_answers_unfold(body, coding):
    packed = compress(body, coding)
    assert (gzip.decompress if coding == "gzip" else zlib.decompress)(packed) == body
