"""Heads as handlers read them, and what an error adds to its answer."""

from __future__ import annotations

import pytest

from hebe.serving.http1.messages import HttpRequest, refusal_headers
from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError


def test_a_header_is_text_without_what_surrounds_it():
    request = HttpRequest("GET", "/", "", {b"x-name": b" caf\xe9 ", b"empty": b""}, 0.0, "127.0.0.1")
    assert request.header(b"x-name") == "caf\xe9"
    assert request.header(b"empty") == ""
    assert request.header(b"absent") is None


def test_requests_share_no_body():
    first, second = (HttpRequest("POST", "/", "", {}, 0.0, "127.0.0.1") for _ in range(2))
    first.body = memoryview(b"first")
    assert bytes(second.body) == b""


@pytest.mark.parametrize(
    ("retry_after_s", "told"), [(0.0, None), (0.001, b"1"), (1.0, b"1"), (1.2, b"2"), (1e9, b"3600")]
)
def test_when_to_try_again_is_told_in_whole_seconds_up_to_an_hour(retry_after_s, told):
    error = RequestError(ErrorKind.OVERLOADED, "the queue is full", retry_after_s=retry_after_s)
    assert dict(refusal_headers(error)).get(b"retry-after") == told


def test_who_has_no_token_or_the_wrong_method_is_told_what_to_use():
    assert refusal_headers(RequestError(ErrorKind.UNAUTHENTICATED, "no token")) == ((b"www-authenticate", b"Bearer"),)
    wrong = RequestError(ErrorKind.WRONG_METHOD, "method USE is not for this path; use GET, POST")
    assert refusal_headers(wrong) == ((b"allow", b"GET, POST"),)
    assert refusal_headers(InvalidInput("use another key")) == ()
