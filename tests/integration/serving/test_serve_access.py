"""TLS, tokens and rates, as tritonclient meets them."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from hebe.cli.terminal.server_process import ServerProcess
from tests.servers.certificates import self_signed

from .served import PATIENCE_S, TOLERANCE, Reference, draw, small_dlrm, store, triton_inputs

TOKEN, OTHER_TOKEN = "correct-horse", "battery-staple"
RATE = 30
"""Requests a second of each token: more than the tests send but for the one that uses it up."""


@dataclass
class Guarded:
    """A server that asks for TLS and a token."""

    process: ServerProcess
    certificate: Path
    reference: Reference

    def http(self, package: Any = tritonclient.http, **options: Any) -> Any:
        """A client that trusts the certificate."""
        url = self.process.http_url.removeprefix("https://")
        context = ssl.create_default_context(cafile=str(self.certificate))
        if package is tritonclient.http:
            # "insecure" leaves out a check of the host's name that Python has deprecated; the context makes it anyway.
            options |= {"ssl_context_factory": lambda: context, "insecure": True}
            return package.InferenceServerClient(url, ssl=True, **options)
        return package.InferenceServerClient(url, ssl=True, ssl_context=context, **options)

    def grpc(self, package: Any = tritonclient.grpc) -> Any:
        """A client that trusts the certificate."""
        return package.InferenceServerClient(
            self.process.grpc_address, ssl=True, root_certificates=str(self.certificate)
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    root = tmp_path_factory.mktemp("guarded")
    store(root / "models", small_dlrm("ranker"))
    certificate, key = self_signed(root)
    (root / "tokens").write_text(f"# who may ask\n{OTHER_TOKEN}\n")
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--rate-limit", str(RATE)]
    options += ["--api-token", TOKEN, "--api-token-file", str(root / "tokens")]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(certificate))  # for the health polls of ServerProcess
        with ServerProcess(root / "models", root / "log", options, ready_timeout_s=5 * PATIENCE_S) as process:
            yield Guarded(process, certificate, Reference(root / "models", "ranker"))
    log = (root / "log").read_text()
    assert TOKEN not in log
    assert OTHER_TOKEN not in log


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("token", [TOKEN, OTHER_TOKEN])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_scores_for_who_has_a_token(guarded: Guarded, rng, protocol: str, token: str):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    inputs = draw(guarded.reference.spec, 20, rng)
    with getattr(guarded, protocol)() as client:
        assert client.is_server_live()
        assert client.is_server_ready(), "health needs no token"
        assert client.get_server_metadata(headers=bearer(token))
        result = client.infer("ranker", triton_inputs(module, inputs), headers=bearer(token))
    np.testing.assert_allclose(result.as_numpy("score"), guarded.reference.scores(inputs), rtol=0, atol=TOLERANCE)


def test_metrics_are_for_who_has_a_token(guarded: Guarded):
    url, trusting = guarded.process.metrics_url, ssl.create_default_context(cafile=str(guarded.certificate))
    assert url.startswith("https://")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url, timeout=PATIENCE_S, context=trusting)
    asked = urllib.request.Request(url, headers=bearer(OTHER_TOKEN))
    with urllib.request.urlopen(asked, timeout=PATIENCE_S, context=trusting) as answer:
        assert "hebe_ready 1.0" in answer.read().decode()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_the_asyncio_clients_too(guarded: Guarded, rng, protocol: str):
    module = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}[protocol]
    inputs = draw(guarded.reference.spec, 20, rng)
    async with getattr(guarded, protocol)(module) as client:
        result = await client.infer("ranker", triton_inputs(module, inputs), headers=bearer(TOKEN))
        with pytest.raises(InferenceServerException):
            await client.infer("ranker", triton_inputs(module, inputs))
    np.testing.assert_allclose(result.as_numpy("score"), guarded.reference.scores(inputs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "no token: send the header 'Authorization: Bearer TOKEN'"),
        ({"authorization": TOKEN}, "header Authorization must be 'Bearer TOKEN'"),
        (bearer("guess"), "the token is not known here"),
        (bearer(TOKEN[:-1]), "the token is not known here"),
    ],
)
def test_nothing_for_who_has_none(guarded: Guarded, rng, protocol: str, headers: dict[str, str], message: str):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    inputs = triton_inputs(module, draw(guarded.reference.spec, 2, rng))
    with getattr(guarded, protocol)() as client:
        for ask in (  # with copies of the headers, since tritonclient writes into them
            lambda: client.infer("ranker", inputs, headers=dict(headers)),
            lambda: client.get_model_metadata("ranker", headers=dict(headers)),
            lambda: client.get_model_repository_index(headers=dict(headers)),
            lambda: client.unload_model("ranker", headers=dict(headers)),
        ):
            with pytest.raises(InferenceServerException) as caught:
                ask()
            assert caught.value.status() == {"http": "401", "grpc": "StatusCode.UNAUTHENTICATED"}[protocol]
            assert caught.value.message() == message
        assert client.is_model_ready("ranker", headers=bearer(TOKEN))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_rate_is_per_token_and_comes_back(guarded: Guarded, protocol: str):
    """More requests than the rate allows at once, until one is refused; the other token is not touched."""
    with getattr(guarded, protocol)() as client:

        def ask_without_end() -> None:
            while True:
                client.get_server_metadata(headers=bearer(OTHER_TOKEN))

        with pytest.raises(InferenceServerException) as caught:
            ask_without_end()
        assert caught.value.status() == {"http": "429", "grpc": "StatusCode.RESOURCE_EXHAUSTED"}[protocol]
        assert f"the limit of {RATE} requests a second is used up" in caught.value.message()
        assert client.get_server_metadata(headers=bearer(TOKEN))
        assert client.is_server_ready(), "health is not counted"


def test_who_speaks_without_tls_is_turned_away(guarded: Guarded):
    url = guarded.process.http_url.replace("https://", "http://")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"{url}/v2/health/live", timeout=PATIENCE_S)
    with tritonclient.grpc.InferenceServerClient(guarded.process.grpc_address) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.is_server_live(client_timeout=PATIENCE_S)
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    with guarded.http() as client:
        assert client.is_server_live()
    for line in guarded.process._log.read_text().splitlines():
        assert line.startswith(("Hebe serves", "Ready", "20")), "gRPC's core has no lines of its own there"


def test_who_does_not_know_the_certificate_does_not_connect(guarded: Guarded):
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(
            f"{guarded.process.http_url}/v2/health/live",
            timeout=PATIENCE_S,
            context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
