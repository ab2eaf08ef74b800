"""How Redis servers are reached: addresses, user and password, TLS. What speaks to them is in `nodes`."""

from __future__ import annotations

import contextlib
import math
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hebe.embeddings.store import StoreError

NEEDS_REDIS = "Redis needs redis-py: pip install 'hebe-serve[redis]'"
CLIENT_MESSAGE = "the volatile store of embedding rows is not available"
_UNIX = "unix:"
_OF_A_URL = re.compile(r"[/@\s]")


class RedisFull(StoreError):
    """Redis has no memory left for what it was sent."""


@dataclass(frozen=True, slots=True, order=True)
class RedisAddress:
    """A server's host and TCP port, or the path of its Unix socket and port 0."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> RedisAddress:
        """Of `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Raises ValueError."""
        _refuse_url(text)
        if text.startswith(_UNIX) and len(text) > len(_UNIX):
            return cls(text.removeprefix(_UNIX), 0)
        host, _, port = text.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
            raise ValueError(f"address is {text!r}: must be HOST:PORT or unix:PATH")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        if not self.port:
            return f"{_UNIX}{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(addresses: str | Sequence[str]) -> tuple[RedisAddress, ...]:
    """Of a list, or of one string in which commas or semicolons part them. Raises ValueError."""
    texts = addresses.replace(";", ",").split(",") if isinstance(addresses, str) else list(addresses)
    if not texts:
        raise ValueError("address is empty: must name a Redis server")
    for text in texts:  # before any is told: a comma may be one of a password
        _refuse_url(text)
    return tuple(dict.fromkeys(RedisAddress.parse(text) for text in texts))


def _refuse_url(text: str) -> None:
    """Nobody's host is called like a URL or a part of one; logs and status tell addresses, and a URL has a password."""
    if not text.startswith(_UNIX) and _OF_A_URL.search(text.strip()):
        raise ValueError("address must be HOST:PORT or unix:PATH, without scheme, user, password or anything else")


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """How servers are reached; names and defaults, but for the time-out, are those of HPS' `volatile_db` block.

    `num_node_connections` is the most connections to each server. `timeout_s` is the longest that one exchange of
    commands and replies with all servers concerned may take, connecting and waiting for a connection included; only
    the system's resolver, where addresses are names, and a server that sends its reply in drops may take longer. With
    `enable_tls` the server's certificate must be signed by an authority of `tls_ca_certificate` (a file, or a directory
    of files; None: those of the system) and be for `tls_server_name_identification` (None: the address). Raises
    ValueError naming a field.
    """

    user_name: str = "default"
    password: str = field(default="", repr=False)
    num_node_connections: int = 5
    timeout_s: float = 1.0
    enable_tls: bool = False
    tls_ca_certificate: Path | None = None
    tls_client_certificate: Path | None = None
    tls_client_key: Path | None = None
    tls_server_name_identification: str | None = None

    def __post_init__(self) -> None:
        if self.num_node_connections < 1:
            raise ValueError(f"num_node_connections is {self.num_node_connections}: must be at least 1")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"timeout_s is {self.timeout_s}: must be above 0")
        if (self.tls_client_certificate is None) != (self.tls_client_key is None):
            raise ValueError("tls_client_certificate and tls_client_key go together")

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises ValueError for files that cannot be used."""
        if not self.enable_tls:
            return None
        try:
            context = _context_of(self.tls_ca_certificate)
        except OSError as fault:
            raise ValueError(f"tls_ca_certificate {self.tls_ca_certificate}: {fault}") from None
        if self.tls_client_certificate is not None:
            try:
                context.load_cert_chain(self.tls_client_certificate, self.tls_client_key)
            except OSError as fault:
                files = f"{self.tls_client_certificate} and tls_client_key {self.tls_client_key}"
                raise ValueError(f"tls_client_certificate {files}: {fault}") from None
        return context


def _context_of(authorities: Path | None) -> ssl.SSLContext:
    """One that trusts them. Raises OSError."""
    if authorities is None or not authorities.is_dir():
        return ssl.create_default_context(cafile=authorities)
    # As OpenSSL, and HPS, have it, but without its names of files, the certificates' hashes, being needed.
    context = ssl.create_default_context(capath=authorities)
    for file in authorities.iterdir():
        with contextlib.suppress(OSError):  # what is no certificate
            context.load_verify_locations(file)
    if not context.cert_store_stats()["x509"]:
        raise OSError("no file of this directory is a certificate")
    return context
