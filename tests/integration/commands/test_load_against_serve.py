"""The load generator against `hebe serve`."""

from dataclasses import replace

import pytest

from hebe.load_generator.discovery import discover
from hebe.load_generator.error import LoadError
from hebe.load_generator.search.qps_search import Workload
from hebe.load_generator.session import run_load
from hebe.load_generator.target import Target, parse_endpoint
from hebe.workload.key_skew import ReuseKeys
from hebe.workload.query_sizes import FixedSizes, NormalSizes, QuantileSizes
from tests.integration.serving.served import eventually, hebe_serve, small_dlrm, store
from tests.servers.certificates import self_signed

WORKLOAD = Workload(sizes=QuantileSizes((1, 7, 300)), keys=ReuseKeys())


@pytest.mark.parametrize("model", ["ranker", "din"])
@pytest.mark.parametrize(("protocol", "encoding"), [("http", "binary"), ("http", "json"), ("grpc", "binary")])
def test_every_query_is_understood_and_answered(served, protocol, encoding, model):
    endpoint = parse_endpoint(getattr(served, protocol), protocol)
    target = Target(endpoint, model, encoding=encoding, priority=1, timeout_ms=60_000.0)
    report = run_load(target, WORKLOAD, 20, 1.0, warm_up_s=0.2)
    assert report.latencies.failed == {}
    assert report.latencies.refused == {}
    assert report.latencies.answers > 5
    assert report.sla_met
    assert report.sla.latency_ms == 3_600_000


def test_the_server_tells_the_rows_of_every_feature(served):
    for url, protocol in ((served.http, "http"), (served.grpc, "grpc")):
        told = discover(Target(parse_endpoint(url, protocol), "ranker"))
        spec = served.spec("ranker")
        assert {i.name: i.rows for i in told.inputs if i.rows is not None} == {
            feature.name: spec.table(feature.table).rows for feature in spec.features
        }


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_more_items_than_the_server_takes_is_said_before_the_run(served, protocol):
    target = Target(parse_endpoint(getattr(served, protocol), protocol), "ranker")
    with pytest.raises(LoadError, match="query sizes reach 1,501 items: must be at most 1,500"):
        run_load(target, Workload(sizes=QuantileSizes((1501,))), 10, 0.5)
    with pytest.raises(LoadError, match=r"the mean is 2000 items: must lie in \[1, 1,500\]"):
        run_load(target, Workload(sizes=NormalSizes.unbounded(2000, 10)), 10, 0.5)
    report = run_load(target, Workload(sizes=NormalSizes.unbounded(1490, 100)), 20, 1.0, warm_up_s=0.0)
    assert report.latencies.failed == {}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with TLS and a token: HTTP and gRPC addresses, and the certificate."""
    root = tmp_path_factory.mktemp("guarded")
    certificate, key = self_signed(root)
    store(root / "models", small_dlrm("ranker"))
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--api-token", "secret"]
    options += ["--max-request-bytes", "64K", "--max-json-bytes", "16K"]
    with hebe_serve(root / "models", root / "log", *options, "--workers", "1") as server:
        addresses = server.listening

        def ready():
            try:
                return discover(_target(addresses["http"], certificate))
            except LoadError:
                return None

        eventually(ready, "the model is loaded")
        yield addresses, certificate


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tls_and_token(guarded, protocol):
    addresses, certificate = guarded
    report = run_load(_target(addresses[protocol], certificate), WORKLOAD, 20, 0.5, warm_up_s=0.1)
    assert report.latencies.answers == report.latencies.arrivals > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_queries_as_large_as_the_server_tells_are_answered_and_larger_ones_not_sent(guarded, protocol):
    addresses, certificate = guarded
    target = _target(addresses[protocol], certificate)
    most = discover(target).max_items
    assert 500 < most < 800, "of 80 bytes, in 64 KiB"
    report = run_load(target, Workload(sizes=FixedSizes(most)), 20, 0.5, warm_up_s=0.1)
    assert report.latencies.answers == report.latencies.arrivals > 0
    with pytest.raises(LoadError) as caught:
        run_load(target, Workload(), 20, 0.5)
    assert f"query sizes reach 999 items: must be at most {most}, and an item has 80 bytes" in str(caught.value)
    assert "give smaller --sizes, or have the server take larger queries (hebe serve --max-request" in str(caught.value)


def test_text_that_is_larger_than_the_server_takes_is_said_before_the_run(guarded):
    addresses, certificate = guarded
    target = replace(_target(addresses["http"], certificate), encoding="json")
    with pytest.raises(LoadError, match=r"up to 500 items: 413 \d+ bytes of JSON exceed .*--max-json-bytes"):
        run_load(target, Workload(sizes=FixedSizes(500)), 20, 0.5)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_wrong_token_is_one_clear_line(guarded, protocol):
    addresses, certificate = guarded
    for token in (None, "guess"):
        with pytest.raises(LoadError, match="give --api-token"):
            discover(_target(addresses[protocol], certificate, token))


@pytest.mark.parametrize(("protocol", "told"), [("http", "is not trusted: self-signed"), ("grpc", "cannot be reached")])
def test_a_certificate_that_is_not_trusted(guarded, protocol, told):
    with pytest.raises(LoadError, match=f"{told}.*; .*give the certificates to trust with --ca-file"):
        discover(_target(guarded[0][protocol], None))


def test_plain_http_where_tls_is_spoken(guarded):
    address = guarded[0]["http"].replace("https", "http")
    with pytest.raises(LoadError, match="does not speak HTTP"):
        discover(Target(parse_endpoint(address), "ranker"))


def _target(address, certificate, token="secret"):
    if "://" not in address:
        address = f"grpcs://{address}"
    return Target(parse_endpoint(address), "ranker", ca_file=certificate, api_token=token)
