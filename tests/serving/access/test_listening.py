from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import http.client
import ipaddress
import math
import os
import socket
import ssl
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from hebe.serving.access import listening
from hebe.serving.access.listening import (
    ConnectionRoom,
    ServerTls,
    TlsFiles,
    bare_host,
    on_loopback,
    open_files,
    open_port,
)
from hebe.serving.grpc.protocol import SERVICE
from hebe.serving.requests.errors import ServeError


def certificate(directory, name):
    """A self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(directory / f"{name}.crt", directory / f"{name}.key")
    files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"), "server")


def test_both_protocols_speak_tls(serve_with, tls):
    front_ends = serve_with(tls=tls)
    context = ssl.create_default_context(cafile=tls.certificate)
    connection = http.client.HTTPSConnection(front_ends.http_url, context=context, timeout=10)
    for body in (b"{}", b'{"pad": "' + b"x" * 300_000 + b'"}'):
        connection.request("POST", "/v2/models/ranker/infer", body)
        response = connection.getresponse()
        assert (response.status, b"inputs" in response.read()) == (400, True)
    connection.request("POST", "/v2/models/ranker/infer", bytes(2 << 20))
    assert connection.getresponse().status == 413
    connection.close()
    credentials = grpc.ssl_channel_credentials(tls.certificate.read_bytes())
    with grpc.secure_channel(front_ends.grpc_url, credentials) as channel:
        assert channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=10) == b"\x08\x01"


def shown(port):
    """The certificate that a server shows to a new connection, PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10).encode()


def test_a_certificate_is_renewed_while_the_server_runs(serve_with, tmp_path):
    files, later = certificate(tmp_path, "server"), certificate(tmp_path, "later")
    first, second = files.certificate.read_bytes(), later.certificate.read_bytes()
    tls = ServerTls(files)
    front_ends = serve_with(tls=tls)
    ports = (front_ends.http.port, front_ends.grpc.port)
    assert [shown(port) for port in ports] == [first, first]
    context = ssl.create_default_context(cafile=files.certificate)
    connection = http.client.HTTPSConnection(front_ends.http_url, context=context, timeout=10)
    connection.request("GET", "/v2/health/live")
    connection.getresponse().read()
    os.replace(later.certificate, files.certificate)
    with capture_logs() as lines:
        tls.look()
        os.replace(later.key, files.key)
        tls.look()
        assert [shown(port) for port in ports] == [first, first], "half of the files may be the old ones"
        for _ in range(3):
            tls.look()
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("info", "new connections get the new certificate")
    ]
    assert [shown(port) for port in ports] == [second, second]
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()
    credentials = grpc.ssl_channel_credentials(second)
    with grpc.secure_channel(front_ends.grpc_url, credentials) as channel:
        assert channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=10) == b"\x08\x01"


@pytest.mark.parametrize("damage", ["gone", "cut", "of another key"])
def test_a_damaged_new_certificate_leaves_the_one_before(serve_with, tmp_path, damage):
    files = certificate(tmp_path, "server")
    first = files.certificate.read_bytes()
    tls = ServerTls(files)
    front_ends = serve_with(tls=tls)
    if damage == "gone":
        files.certificate.unlink()
    elif damage == "cut":
        files.certificate.write_bytes(first[:100])
    else:
        os.replace(certificate(tmp_path, "other").certificate, files.certificate)
    with capture_logs() as lines:
        for _ in range(4):
            tls.look()
    assert [line["log_level"] for line in lines] == ["error"]
    assert str(files.certificate) in lines[0]["reason"]
    assert [shown(port) for port in (front_ends.http.port, front_ends.grpc.port)] == [first, first]
    files.certificate.write_bytes(first)
    for _ in range(2):
        tls.look()
    assert shown(front_ends.http.port) == first


def test_a_new_certificate_that_could_not_be_read_is_taken_once_it_can_be(tmp_path, monkeypatch):
    """Changed permissions change nothing by which a file written anew is known."""
    files, later = certificate(tmp_path, "server"), certificate(tmp_path, "later")
    tls, second = ServerTls(files), later.key.read_bytes()
    os.replace(later.certificate, files.certificate)
    os.replace(later.key, files.key)
    read = Path.read_bytes

    def denied(path):
        if path == files.key:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path)

    with capture_logs() as lines:
        with monkeypatch.context() as closed:
            closed.setattr(Path, "read_bytes", denied)
            for _ in range(4):
                tls.look()
        tls.look()
    assert [line["log_level"] for line in lines] == ["error", "info"]
    assert tls.pem[1] == second


async def test_files_are_looked_at_until_the_server_ends(tmp_path, monkeypatch):
    tls = ServerTls(certificate(tmp_path, "server"))
    looked = asyncio.Event()
    monkeypatch.setattr(listening, "_LOOK_S", 0.001)
    monkeypatch.setattr(tls, "look", looked.set)
    watching = asyncio.ensure_future(tls.watch())
    async with asyncio.timeout(60):
        await looked.wait()
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled()


def test_a_client_without_tls_does_not_disturb_it(serve_with, tls):
    front_ends = serve_with(tls=tls)
    with socket.create_connection(("127.0.0.1", front_ends.http.port)) as plain:
        plain.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
        plain.settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert not plain.recv(100).startswith(b"HTTP")
    context = ssl.create_default_context(cafile=tls.certificate)
    connection = http.client.HTTPSConnection(front_ends.http_url, context=context, timeout=10)
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()


def test_tls_files_that_do_not_fit(tls, tmp_path):
    other = certificate(tmp_path, "other")
    with pytest.raises(ServeError, match="not a PEM certificate and its unencrypted key"):
        TlsFiles(tls.certificate, other.key).context()
    with pytest.raises(ServeError, match=r"TLS key .*absent: No such file"):
        TlsFiles(tls.certificate, tmp_path / "absent").context()
    with pytest.raises(ServeError, match=r"TLS key .*: is not a file"):
        TlsFiles(tls.certificate, tmp_path).context()
    with pytest.raises(ServeError, match=r"TLS certificate .*absent: No such file"):
        TlsFiles(tmp_path / "absent", tls.key).read()
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ServeError, match="not a PEM certificate"):
        TlsFiles(tmp_path / "text", tls.key).context()


def test_tls_files_in_a_directory_that_may_not_be_searched(tls, monkeypatch):
    """As /etc/letsencrypt/live, to a server that is not root's."""

    def deny(path, **_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", deny)
    with pytest.raises(ServeError) as error:
        ServerTls(tls)
    assert str(error.value) == f"TLS certificate {tls.certificate}: Permission denied"


def test_an_encrypted_key_is_refused_without_asking(tls, tmp_path):
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"pass"),
        )
    )
    with pytest.raises(ServeError, match="unencrypted key"):
        TlsFiles(tls.certificate, encrypted).context()


@pytest.fixture
def taken():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_taken_port_is_named(taken):
    with pytest.raises(ServeError) as error:
        open_port("HTTP", "127.0.0.1", taken)
    assert str(error.value) == (
        f"HTTP port {taken} on 127.0.0.1: already in use; stop what listens there, or choose another with --http-port"
    )


def test_a_taken_port_is_named_by_both_servers(taken, serve_with):
    with pytest.raises(ServeError, match=f"HTTP port {taken} on 127.0.0.1: already in use"):
        serve_with(http_port=taken)
    with pytest.raises(ServeError, match=f"gRPC port {taken} on 127.0.0.1: already in use"):
        serve_with(grpc_port=taken)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "must lie in 0..65535"),
        ("127.0.0.1", -1, "must lie in 0..65535"),
        ("192.0.2.1", 0, "not an address of this machine; choose another with --host"),
        ("no such host", 0, "use an address of this machine"),
        ("", 0, "use an address of this machine"),
        ("a..b", 0, "is no name of a host; use an address of this machine"),
    ],
)
def test_ports_that_cannot_be_opened(host, port, message):
    with pytest.raises(ServeError) as error:
        open_port("metrics", host, port)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("host", "bare"), [("[::1]", "::1"), ("::1", "::1"), ("127.0.0.1", "127.0.0.1"), ("[x]", "[x]"), ("", "")]
)
def test_an_address_as_urls_write_it_is_one_too(host, bare):
    assert bare_host(host) == bare


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("fe80::1%lo", False),
        ("", False),
        ("no such host", False),
        ("a..b", False),
    ],
)
def test_what_listens_on_loopback(host, is_it):
    assert on_loopback(host) == is_it


@pytest.mark.parametrize(
    ("most_files", "http", "metrics", "grpc"),
    [
        (math.inf, 1024, 256, 768),
        (2324, 1024, 256, 768),
        (2323, 1023, 255, 769),
        (1024, 376, 94, 283),
        (64, 16, 4, 13),
        (20, 4, 2, 4),
        (10, 4, 2, 4),
    ],
)
def test_connections_have_the_room_that_open_files_leave(most_files, http, metrics, grpc):
    room = ConnectionRoom.within(most_files, open_files=20)
    assert (room.http, room.metrics, room.grpc, room.needed) == (http, metrics, grpc, 2324)


def test_open_files_are_counted():
    before = open_files()
    with socket.socket(), socket.socket():
        assert open_files() == before + 2


def test_a_port_that_is_not_permitted(monkeypatch):
    def deny(_self, _address):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(socket.socket, "bind", deny)
    with pytest.raises(ServeError, match="ports below 1024 need privileges, choose a higher one with --grpc-port"):
        open_port("gRPC", "127.0.0.1", 80)


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (errno.EAFNOSUPPORT, "not an address of this machine; choose another with --host"),
        (errno.EMFILE, os.strerror(errno.EMFILE)),
    ],
)
def test_a_port_that_there_is_no_socket_for(monkeypatch, fault, advice):
    """As that of an IPv6 address on a machine without IPv6."""

    def deny(*_):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(socket, "socket", deny)
    with pytest.raises(ServeError) as error:
        open_port("HTTP", "::1", 8000)
    assert str(error.value) == f"HTTP port 8000 on ::1: {advice}"


def test_a_port_can_be_used_again_at_once():
    """Though a connection whose server hung up first still keeps it for a minute."""
    first = open_port("HTTP", "127.0.0.1", 0)
    address = first.getsockname()
    with first, socket.create_connection(address) as client:
        first.setblocking(True)
        first.accept()[0].close()
        assert client.recv(1) == b""
    with socket.socket() as other, pytest.raises(OSError, match="already in use"):
        other.bind(address)
    open_port("HTTP", *address).close()
