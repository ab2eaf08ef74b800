from pathlib import Path

import pytest

from hebe.load_generator.error import LoadError
from hebe.load_generator.target import Endpoint, Target, parse_endpoint
from hebe.spec import SlaTarget


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("http://localhost:8000", None, Endpoint("http", "localhost", 8000)),
        ("http://localhost", None, Endpoint("http", "localhost", 8000)),
        ("https://h:443/ranking/", None, Endpoint("http", "h", 443, tls=True, prefix="/ranking")),
        ("grpc://h", None, Endpoint("grpc", "h", 8001)),
        ("grpcs://h:9000", None, Endpoint("grpc", "h", 9000, tls=True)),
        ("127.0.0.1:8001", None, Endpoint("grpc", "127.0.0.1", 8001)),
        ("127.0.0.1:8002", None, Endpoint("http", "127.0.0.1", 8002)),
        ("127.0.0.1:8001", "http", Endpoint("http", "127.0.0.1", 8001)),
        ("http://h:9000", "grpc", Endpoint("grpc", "h", 9000)),
        ("http://[::1]:8000", None, Endpoint("http", "::1", 8000)),
    ],
)
def test_endpoints(url, protocol, expected):
    assert parse_endpoint(url, protocol) == expected


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "ftp://h:1", "http://", "", "http://h:port", "http://h:99999", "http://h/x?y=1", "grpc://h:1/path"],
)
def test_bad_addresses(url):
    with pytest.raises(LoadError, match="URL"):
        parse_endpoint(url)


def test_unknown_protocol():
    with pytest.raises(LoadError, match="must be http or grpc"):
        parse_endpoint("h:1", "thrift")


def test_addresses_are_written_as_they_are_read():
    assert Endpoint("http", "::1", 8000).address == "[::1]:8000"
    assert Endpoint("grpc", "h", 1, tls=True).url == "grpcs://h:1"


def test_parameters():
    endpoint = parse_endpoint("h:8000")
    assert Target(endpoint, "m").parameters() == {}
    assert Target(endpoint, "m", timeout_ms=2.5, priority=3).parameters() == {"timeout": 2500, "priority": 3}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding", "xml"),
        ("connections", 0),
        ("priority", -1),
        ("max_key", -1),
        ("timeout_ms", 0.0),
        ("answer_timeout_s", float("nan")),
        ("api_token", "two\nlines"),
    ],
)
def test_senseless_options_are_named(field, value):
    with pytest.raises(LoadError, match=field):
        Target(parse_endpoint("h:8000"), "m", **{field: value})


def test_a_request_is_given_up_no_sooner_than_the_sla_takes_its_answer():
    target = Target(parse_endpoint("h:8000"), "m")
    assert [target.patience_s(sla) for sla in (None, SlaTarget(20.0), SlaTarget(60_000.0))] == [30, 30, 60]
    given = Target(parse_endpoint("h:8000"), "m", answer_timeout_s=10.0)
    assert [given.patience_s(sla) for sla in (None, SlaTarget(20.0), SlaTarget(10_000.0))] == [10, 10, 10]
    with pytest.raises(LoadError, match=r"answer_timeout_s is 10: answers have 60 s .*leave --answer-timeout out, or"):
        given.patience_s(SlaTarget(60_000.0))


def test_unusable_ca_files(tmp_path):
    target = Target(parse_endpoint("https://h"), "m", ca_file=tmp_path / "none.pem")
    with pytest.raises(LoadError, match=r"none\.pem"):
        target.ssl_context()
    with pytest.raises(LoadError, match=r"none\.pem"):
        target.ca_certificates()
    assert Target(parse_endpoint("http://h"), "m").ssl_context() is None


@pytest.mark.parametrize("url", ["http://h", "grpc://h"])
def test_certificates_are_for_tls(url):
    with pytest.raises(LoadError, match=f"ca_file is trusted.pem: {url}:.* does not speak TLS"):
        Target(parse_endpoint(url), "m", ca_file=Path("trusted.pem"))


def test_grpc_has_no_json():
    with pytest.raises(LoadError, match="encoding is json: gRPC"):
        Target(parse_endpoint("grpc://h"), "m", encoding="json")
