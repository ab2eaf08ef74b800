import pytest

from hebe.serving.http1.head import Heads, _Parser
from hebe.serving.requests.errors import RequestError

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
