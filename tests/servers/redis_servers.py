"""Real Redis servers for tests: one instance, or a cluster of three masters, each to be paused, killed and restarted.

    with RedisServer() as server:               # a free TCP port of 127.0.0.1
        store = RedisStore(dims, server.address)
        server.pause()                          # SIGSTOP: connections stay open, nothing is answered
        server.resume()
        server.kill()                           # SIGKILL
        server.restart()                        # the same address, empty

    with RedisServer(unix_socket=True) as server: ...
    with RedisServer(users={"hebe": "secret"}) as server: ...          # the default user is off
    with RedisServer(tls=make_certificates(directory)) as server: ...  # clients need a certificate too
    with RedisCluster(replicas=1) as cluster: cluster.addresses, cluster.masters[0].kill()

Nothing is kept on disk. A guard process kills what is left of them when the test run ends, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import ipaddress
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .ports import free_port

_START_S = 30.0
_POLL_S = 0.01
_HOST = "127.0.0.1"
_BUS = 10_000
"""So far above its port a node of a cluster talks to the others."""


@dataclass(frozen=True)
class Certificates:
    """Files of a private authority: what a server shows, what a client shows. The server's name is `localhost`."""

    authority: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    client_key: Path


class RedisServer:
    """One `redis-server`, running from the constructor to `stop`. `options` are lines of its configuration file."""

    def __init__(
        self,
        *,
        unix_socket: bool = False,
        tls: Certificates | None = None,
        users: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        cluster: bool = False,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="hebe-redis-")  # short: socket paths end at 107 bytes
        self.directory = Path(self._directory.name)
        self.port = 0 if unix_socket else free_port(beside=_BUS if cluster else 0)
        self.tls, self.users = tls, dict(users or {})
        self.address = f"unix:{self.directory / 'redis.sock'}" if unix_socket else f"{_HOST}:{self.port}"
        """What a store is given."""
        self._process: subprocess.Popen[bytes] | None = None
        self._options = [*self._own_options(cluster), *options]
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id; it must have been started."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it on its address and wait until it answers. It comes up empty."""
        assert not self.running
        configuration = self.directory / "redis.conf"
        configuration.write_text("".join(f"{line}\n" for line in self._options))
        # A session of its own: Ctrl-C reaches the tests, which stop it in order.
        self._process = subprocess.Popen(
            ["redis-server", str(configuration)], cwd=self.directory, stdin=subprocess.DEVNULL, start_new_session=True
        )
        _guard().watch(self._process.pid)
        wait_until(self._answers, _START_S, self._log)

    def pause(self) -> None:
        """Stop it from running; its kernel side still takes connections and bytes."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; its connections break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            _guard().forget(self._process.pid)
            self._process = None

    def restart(self) -> None:
        """Kill it if it runs, and start it again, empty."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Kill it and remove its files. Harmless twice."""
        self.kill()
        self._directory.cleanup()

    def client(self, **options: Any) -> redis.Redis:
        """A client of redis-py, as the first of `users`."""
        return redis.Redis(**{**self._client_options(), **options})

    def command_line(self) -> list[str]:
        """How `redis-cli` reaches it."""
        where = ["-h", _HOST, "-p", str(self.port)] if self.port else ["-s", str(self.directory / "redis.sock")]
        for user, password in list(self.users.items())[:1]:
            where += ["--user", user, "--pass", password, "--no-auth-warning"]
        if self.tls:
            where += ["--tls", "--cacert", str(self.tls.authority)]
            where += ["--cert", str(self.tls.client_certificate), "--key", str(self.tls.client_key)]
        return ["redis-cli", *where]

    def _own_options(self, cluster: bool) -> Iterator[str]:
        yield f"bind {_HOST}"
        yield f"dir {self.directory}"
        yield f"logfile {self.directory / 'log'}"
        yield 'save ""'
        yield "appendonly no"
        yield "enable-debug-command local"
        yield "repl-diskless-sync-delay 0"
        yield "repl-ping-replica-period 1"  # a replica is told to clients after the first one
        if not self.port:
            yield f"unixsocket {self.directory / 'redis.sock'}"
        if self.tls:
            yield "port 0"
            yield f"tls-port {self.port}"
            yield f"tls-ca-cert-file {self.tls.authority}"
            yield f"tls-cert-file {self.tls.server_certificate}"
            yield f"tls-key-file {self.tls.server_key}"
            yield "tls-replication yes"
            if cluster:
                yield "tls-cluster yes"
        else:
            yield f"port {self.port}"
        if self.users and "default" not in self.users:
            yield "user default off"
        for user, password in self.users.items():
            yield f"user {user} on >{password} ~* &* +@all"
        for user, password in list(self.users.items())[:1]:
            yield f"masteruser {user}"
            yield f"masterauth {password}"
        if cluster:
            yield "cluster-enabled yes"
            yield "cluster-config-file nodes.conf"
            yield "cluster-node-timeout 1000"
            yield "cluster-replica-validity-factor 0"

    def _client_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"socket_timeout": 10.0}
        if self.port:
            options |= {"host": _HOST, "port": self.port}
        else:
            options["unix_socket_path"] = str(self.directory / "redis.sock")
        for user, password in list(self.users.items())[:1]:
            options |= {"username": user, "password": password}
        if self.tls:
            options |= {"ssl": True, "ssl_ca_certs": str(self.tls.authority), "ssl_check_hostname": False}
            options |= {"ssl_certfile": str(self.tls.client_certificate), "ssl_keyfile": str(self.tls.client_key)}
        return options

    def _answers(self) -> bool:
        if not self.running:
            raise RuntimeError(f"redis-server ended: {self._log()}")
        try:
            with contextlib.closing(self.client()) as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def _log(self) -> str:
        log = self.directory / "log"
        return log.read_text()[-2000:] if log.exists() else ""


class RedisCluster:
    """Three masters that share all slots, each with `replicas` replicas, which take over within a few seconds."""

    def __init__(
        self,
        *,
        replicas: int = 0,
        tls: Certificates | None = None,
        users: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.nodes: list[RedisServer] = []
        self._replicas = replicas
        try:
            for _ in range(3 * (1 + replicas)):
                self.nodes.append(RedisServer(tls=tls, users=users, options=options, cluster=True))
            self._create()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> RedisCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of all nodes: what a store is given."""
        return [node.address for node in self.nodes]

    @property
    def masters(self) -> list[RedisServer]:
        """The running nodes that have slots now, as the nodes themselves say."""
        return [node for node in self.nodes if node.running and self._role(node) == "master"]

    def wait_until_whole(self, timeout_s: float = _START_S) -> None:
        """Return when all running nodes agree that every slot is served, and have a view of every running node."""
        wait_until(lambda: all(self._is_whole(node) for node in self.nodes if node.running), timeout_s)

    def flush(self) -> None:
        """Remove all data."""
        for node in self.masters:
            with contextlib.closing(node.client()) as client:
                client.flushall()

    def stop(self) -> None:
        """Kill all nodes and remove their files. Harmless twice."""
        for node in self.nodes:
            node.stop()

    def _create(self) -> None:
        # redis-cli's own options stand before "--cluster".
        command = [*self.nodes[0].command_line()[:1], *self.nodes[0].command_line()[5:], "--cluster", "create"]
        command += [*self.addresses, "--cluster-replicas", str(self._replicas), "--cluster-yes"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if made.returncode:
            raise RuntimeError(f"redis-cli --cluster create: {made.stdout[-2000:]}{made.stderr[-2000:]}")
        self.wait_until_whole()
        wait_until(lambda: all(self._replica_follows(node) for node in self.nodes), _START_S)

    def _role(self, node: RedisServer) -> str:
        with contextlib.closing(node.client()) as client:
            role = client.execute_command("ROLE")[0]
            return role.decode() if isinstance(role, bytes) else str(role)

    def _is_whole(self, node: RedisServer) -> bool:
        try:
            with contextlib.closing(node.client(decode_responses=True)) as client:
                info = client.execute_command("CLUSTER INFO")
                slots = client.execute_command("CLUSTER SLOTS")
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        state = info.get("cluster_state") if isinstance(info, dict) else str(info)
        ports = {int(port) for _, _, *owners in slots for _, port, *_ in owners}
        return "ok" in str(state) and ports == {each.port for each in self.nodes if each.running}

    def _replica_follows(self, node: RedisServer) -> bool:
        if self._role(node) == "master":
            return True
        with contextlib.closing(node.client()) as client:
            return bool(client.info("replication")["master_link_status"] == "up")


def make_certificates(directory: Path) -> Certificates:
    """An authority of our own, and a certificate each for a server on localhost and a client, as PEM files."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("hebe test authority", authority_key, authority_key, None)
    files = [directory / "authority.pem"]
    files[0].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate("localhost" if name == "server" else name, key, authority_key, authority)
        files += [directory / f"{name}.pem", directory / f"{name}.key"]
        files[-2].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        pkcs8 = serialization.PrivateFormat.PKCS8
        files[-1].write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return Certificates(*files)


def wait_until(condition: Callable[[], bool], timeout_s: float, log: Callable[[], str] = str) -> None:
    """Ask again and again until `condition` holds; AssertionError after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not so after {timeout_s:g} s. {log()}")
        time.sleep(_POLL_S)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, signing_key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate | None
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(_HOST))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    usage = x509.KeyUsage(True, False, False, False, False, issuer is None, issuer is None, False, False)
    return builder.add_extension(usage, critical=True).sign(signing_key, hashes.SHA256())


class _Guard:
    """A shell that kills the servers when this process is gone, even by SIGKILL: its standard input then ends."""

    _SCRIPT = """
        while read -r sign pid; do
            if [ "$sign" = + ]; then pids="$pids $pid "; else pids="${pids%% $pid *} ${pids#* $pid }"; fi
        done
        [ -z "${pids# }" ] || kill -9 $pids 2>/dev/null
    """

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", self._SCRIPT], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.owner = os.getpid()
        atexit.register(self._close)

    def watch(self, pid: int) -> None:
        self._tell(f"+ {pid}")

    def forget(self, pid: int) -> None:
        self._tell(f"- {pid}")

    def _close(self) -> None:
        if self.owner == os.getpid():
            self._shell.communicate()

    def _tell(self, line: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\n".encode())
        self._shell.stdin.flush()


_guards: list[_Guard] = []


def _guard() -> _Guard:
    if not _guards or _guards[0].owner != os.getpid():
        _guards[:] = [_Guard()]
    return _guards[0]
