"""Whom to send queries to, and how: the address, the protocol, what every request carries."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hebe.load_generator.error import LoadError, LoadUsageError
from hebe.spec import SlaTarget

_SCHEMES = {"http": ("http", False), "https": ("http", True), "grpc": ("grpc", False), "grpcs": ("grpc", True)}
_DEFAULT_PORTS = {"http": 8000, "grpc": 8001}
PROTOCOLS = ("http", "grpc")
ENCODINGS = ("binary", "json")
_ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens. `protocol` is http or grpc; `prefix` is the path in front of /v2, HTTP only."""

    protocol: str
    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @property
    def address(self) -> str:
        """host:port, as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole address."""
        return f"{self.protocol}{'s' if self.tls else ''}://{self.address}{self.prefix}"


def parse_endpoint(url: str, protocol: str | None = None) -> Endpoint:
    """The endpoint of `http[s]://HOST[:PORT]`, `grpc[s]://HOST[:PORT]`, or `HOST:PORT`.

    Without a scheme, port 8001 means gRPC and any other HTTP; `protocol` (http or grpc) overrides what the address
    says. Raises `LoadUsageError`.
    """
    if protocol is not None and protocol not in PROTOCOLS:
        raise LoadUsageError(f"protocol {protocol!r}: must be http or grpc")
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
    except ValueError as fault:
        raise LoadUsageError(f"URL {url!r}: {fault}") from None
    try:
        port, host = parts.port, parts.hostname
    except ValueError:
        raise LoadUsageError(f"URL {url!r}: the port must be a number from 1 to 65535") from None
    if not host or (parts.scheme and parts.scheme not in _SCHEMES) or parts.query or parts.fragment:
        raise LoadUsageError(f"URL {url!r}: must be http://HOST:PORT, https://, grpc://, grpcs:// or HOST:PORT")
    known, tls = _SCHEMES.get(parts.scheme) or ("grpc" if port == _DEFAULT_PORTS["grpc"] else "http", False)
    spoken = protocol or known
    if parts.path.strip("/") and spoken == "grpc":
        raise LoadUsageError(f"URL {url!r}: a gRPC address has no path")
    return Endpoint(spoken, host, port or _DEFAULT_PORTS[spoken], tls, parts.path.rstrip("/"))


def answer_timeout_s(sla: SlaTarget | None) -> float:
    """After how long a request is given up unless somebody says so: half a minute, and no less than `sla` allows."""
    return max(_ANSWER_TIMEOUT_S, sla.latency_s if sla is not None else 0.0)


@dataclass(frozen=True, slots=True)
class Target:
    """One model of one server, and what every request carries.

    `encoding`          of HTTP tensors: binary (the binary tensor extension) or json; gRPC has binary only.
    `ca_file`           PEM certificates to trust instead of the system's; for TLS only.
    `timeout_ms`        the request's own `timeout` parameter: the server may refuse or drop it afterwards.
    `priority`          the request's `priority` parameter; 0 leaves it out.
    `connections`       the most HTTP connections at once, or the most gRPC calls.
    `max_key`           largest key to send, of any input; needed where the server does not tell the number of rows.
    `answer_timeout_s`  after how long the generator gives a request up; None for what `answer_timeout_s` says.

    Raises `LoadUsageError` naming the field that is out of range.
    """

    endpoint: Endpoint
    model: str
    version: str = ""
    encoding: str = "binary"
    api_token: str | None = None
    ca_file: Path | None = None
    timeout_ms: float | None = None
    priority: int = 0
    connections: int = 256
    max_key: int | None = None
    answer_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise LoadUsageError(f"encoding {self.encoding!r}: must be binary or json")
        if self.encoding == "json" and self.endpoint.protocol == "grpc":
            raise LoadUsageError("encoding is json: gRPC carries binary tensors only")
        if self.ca_file is not None and not self.endpoint.tls:
            raise LoadUsageError(
                f"ca_file is {self.ca_file}: {self.endpoint.url} does not speak TLS, so nothing is trusted"
            )
        if self.connections < 1:
            raise LoadUsageError(f"connections is {self.connections}: must be at least 1")
        if self.priority < 0:
            raise LoadUsageError(f"priority is {self.priority}: must be at least 0")
        if self.max_key is not None and self.max_key < 0:
            raise LoadUsageError(f"max_key is {self.max_key}: must be at least 0")
        for name, value in (("timeout_ms", self.timeout_ms), ("answer_timeout_s", self.answer_timeout_s)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise LoadUsageError(f"{name} is {value}: must be a positive number")
        if self.api_token is not None and not (self.api_token.isascii() and self.api_token.isprintable()):
            raise LoadUsageError("api_token: must be printable ASCII")

    def patience_s(self, sla: SlaTarget | None = None) -> float:
        """After how long a request held to `sla` is given up. Raises `LoadUsageError` if that would be while its answer
        may still be in time: then it would be the time-out that is measured.
        """
        if self.answer_timeout_s is None:
            return answer_timeout_s(sla)
        if sla is not None and self.answer_timeout_s < sla.latency_s:
            raise LoadUsageError(
                f"answer_timeout_s is {self.answer_timeout_s:g}: answers have {sla.latency_s:g} s by the SLA and would"
                f" be given up before: leave --answer-timeout out, or give {sla.latency_s:g} or more"
            )
        return self.answer_timeout_s

    def parameters(self) -> dict[str, int]:
        """The protocol's request parameters: `timeout` in microseconds, `priority`."""
        parameters = {}
        if self.timeout_ms is not None:
            parameters["timeout"] = max(round(self.timeout_ms * 1e3), 1)
        if self.priority:
            parameters["priority"] = self.priority
        return parameters

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings, None for a plain connection. Raises `LoadError` if `ca_file` cannot be used."""
        if not self.endpoint.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as fault:
            raise LoadError(f"CA file {self.ca_file}: cannot be used: {fault}") from None

    def ca_certificates(self) -> bytes | None:
        """The content of `ca_file`, which gRPC wants instead of an SSL context. Raises `LoadError`."""
        try:
            return None if self.ca_file is None else self.ca_file.read_bytes()
        except OSError as fault:
            raise LoadError(f"CA file {self.ca_file}: cannot be read: {fault}") from None
