"""Which web pages may ask: a browser sends what a page tells it to, wherever the page is from."""

from __future__ import annotations

import socket

import pytest

from hebe.serving.access import listening
from hebe.serving.access.auth import Gate
from hebe.serving.http.same_origin import OwnSite
from hebe.serving.http1.messages import HttpRequest
from hebe.serving.requests.errors import ErrorKind, RequestError
from tests.serving.http_requests import call, error_of

UNLOAD = "/v2/repository/models/lone/unload"


def test_pages_of_other_sites_may_not_send_anything(front_ends, serve_with):
    for origin in ("http://evil.example", "null", "http://[", "evil"):
        message = error_of(call(front_ends, "POST", UNLOAD, {}, {"Origin": origin}), 403)
        assert "another site than this server" in message
        assert call(front_ends, "GET", "/v2/health/live", None, {"Origin": origin})[0] == 200
    assert "lone" in front_ends.host.models
    elsewhere = serve_with(named="0.0.0.0")
    headers = {"Host": "ads.internal:8000", "Origin": "http://ads.internal:8000"}
    assert call(elsewhere, "POST", UNLOAD, {}, headers)[0] == 200
    guarded = serve_with(gate=Gate(["secret"]))  # which no page of another site has
    headers = {"Origin": "http://ads.example", "Authorization": "Bearer secret"}
    assert call(guarded, "POST", UNLOAD, {}, headers)[0] == 200


@pytest.mark.parametrize(
    ("method", "path"), [("POST", UNLOAD), ("GET", "/v2/models/ranker"), ("GET", "/v2/health/live")]
)
def test_nor_may_they_by_a_name_of_their_own_that_points_here(front_ends, serve_with, method, path):
    headers = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
    message = error_of(call(front_ends, method, path, None, headers), 403)
    assert message.startswith("header Host is 'evil.example:8000', no name of this server")
    assert "--host" in message
    assert "--api-token-file" in message
    assert "lone" in front_ends.host.models
    guarded = serve_with(gate=Gate(["secret"]))
    assert call(guarded, method, path, None, {**headers, "Authorization": "Bearer secret"})[0] == 200


def asked(host):
    headers = {} if host is None else {b"host": host.encode("latin-1")}
    return HttpRequest("GET", "/v2", "", headers, 0.0, "127.0.0.1", "1.0" if host is None else "1.1")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8000",
        "127.0.0.1",
        "[::1]:8000",
        "[::1]",
        "192.0.2.1:80",
        "localhost",
        "LocalHost.:8000",
        "ads.localhost:8000",
        "ads.internal:8000",
        "ADS.internal",
        None,
    ],
)
def test_names_and_addresses_that_pages_cannot_have(monkeypatch, host):
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))
    monkeypatch.setattr(listening.socket, "getaddrinfo", lambda *_, **__: [address])
    OwnSite("Ads.internal").check(asked(host))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example:8000", "notlocalhost", "127.0.0.1.evil.example", "[evil]:1", "", "é"],
)
def test_other_names(host):
    site = OwnSite("127.0.0.1")
    site.check(asked("127.0.0.1:8000"))
    for _ in range(2):
        with pytest.raises(RequestError) as refused:
            site.check(asked(host))
        assert refused.value.kind is ErrorKind.FORBIDDEN
    OwnSite("0.0.0.0").check(asked(host))
