"""Header blocks that another end's tables follow, however these are sized."""

import hpack
import pytest

from hebe.load_generator.senders.grpc.http2_frames import ErrorCode, Http2Error
from hebe.load_generator.senders.grpc.http2_headers import HeaderDecoder, HeaderEncoder

REQUEST = ((b":method", b"POST"), (b":path", b"/some/long/path"), (b"te", b"trailers"), (b"authorization", b"Bearer x"))
ANSWER = ((b":status", b"200"), (b"content-type", b"application/grpc"))


def read(decoder, block):
    return tuple((name, value) for name, value in decoder.decode(block, raw=True))


def test_a_list_takes_few_bytes_once_it_is_known():
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    sizes = []
    for headers in (REQUEST, ANSWER, REQUEST, ANSWER, REQUEST, ANSWER, REQUEST):
        block = encoder.encode(headers)
        assert read(decoder, block) == headers
        sizes.append(len(block))
    assert sizes[2:] == [len(REQUEST), len(ANSWER)] * 2 + [len(REQUEST)]
    assert sizes[0] > 20


@pytest.mark.parametrize("table_bytes", [0, 60, 130, 300, 4096, 1 << 20])
def test_the_peers_table_may_change_its_size_at_any_time(table_bytes):
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    for size_bytes in (4096, table_bytes, 4096, table_bytes):
        decoder.max_allowed_table_size = size_bytes
        encoder.resize(size_bytes)
        for headers in (REQUEST, ANSWER, REQUEST, ANSWER, REQUEST):
            assert read(decoder, encoder.encode(headers)) == headers


def test_lists_that_push_each_other_out_are_spelled_out():
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    large = ((b"authorization", b"Bearer " + b"t" * 3950),)
    for headers in (REQUEST, large, REQUEST, REQUEST, large, large, REQUEST):
        assert read(decoder, encoder.encode(headers)) == headers


def test_blocks_are_read_as_they_are_meant_when_the_table_moves():
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for number in range(30):
        for headers in (ANSWER, ANSWER, ((b"x-number", b"%d" % (number // 3)), (b"x-other", b"%d" % (number // 7)))):
            assert decoder.decode(encoder.encode(headers)) == headers


@pytest.mark.parametrize("block", [b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80", b"\x40\x05ab", b"\xfe"])
def test_a_block_that_cannot_be_read(block):
    with pytest.raises(Http2Error, match="headers that cannot be read") as fault:
        HeaderDecoder().decode(block)
    assert fault.value.code is ErrorCode.COMPRESSION_ERROR
