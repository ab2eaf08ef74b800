"""What the run knows of every server: how it is installed, started, and reached. One file a server implements it."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .installation import Installation
from .processes import ServerProcess

SERVED = Path(__file__).with_name("served")
"""The files that run inside the peers' virtualenvs."""
HOST = "127.0.0.1"
READY_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a peer runs the model: worker processes or instances, threads of each, eager or scripted module."""

    workers: int
    threads: int
    scripted: bool

    def __str__(self) -> str:
        graph = "scripted" if self.scripted else "eager"
        return f"{graph}, workers x threads: {self.workers} x {self.threads}"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that all serve: where Hebe wrote it, and its name there."""

    repository: Path
    name: str

    @property
    def folder(self) -> Path:
        """The folder of its newest version."""
        return max(
            (path for path in (self.repository / self.name).iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )


@dataclass(frozen=True, slots=True)
class ProtocolEndpoint:
    """Where a server speaks the Open Inference Protocol. `batched`: the client adds the batch dimension."""

    http_address: str
    grpc_address: str
    batched: bool

    def infer_url(self, model: str) -> str:
        """The HTTP address that infer requests go to."""
        return f"http://{self.http_address}/v2/models/{model}/infer"


@dataclass(frozen=True, slots=True)
class RawEndpoint:
    """Where a server takes raw bodies."""

    url: str


class Server(ABC):
    """One server. `clients`: which measure it; `settings`: None where its own defaults stand."""

    name: str
    clients: tuple[str, ...]
    settings: Settings | None

    @abstractmethod
    def install(self, installation: Installation) -> None:
        """Bring everything that `start` needs. Raises `InstallError`."""

    @abstractmethod
    def start(self, model: ServedModel, workspace: Path) -> RunningServer:
        """Start it and return once it answers. Raises `ServerError`; leaves nothing behind then."""


@dataclass(frozen=True)
class RunningServer:
    """A started server."""

    server: Server
    process: ServerProcess
    endpoint: ProtocolEndpoint | RawEndpoint

    @property
    def name(self) -> str:
        """The server's name."""
        return self.server.name


def start_process(
    name: str,
    command: list[str],
    workspace: Path,
    environment: Mapping[str, str],
    ready_url: str,
) -> ServerProcess:
    """Start a server and wait until `ready_url` answers with a 2xx; ends it again if it does not."""
    process = ServerProcess(name, command, workspace, environment)
    try:
        process.wait_ready(lambda: answers(ready_url), READY_PATIENCE_S)
    except BaseException:
        process.stop()
        raise
    return process


def model_environment(model: ServedModel, settings: Settings) -> dict[str, str]:
    """What `served/dlrm.py` and its users read."""
    return {
        "PEERS_MODEL_DIR": str(model.folder.resolve()),
        "PEERS_MODEL_NAME": model.name,
        "PEERS_SERVED_DIR": str(SERVED),
        "PEERS_WORKERS": str(settings.workers),
        "PEERS_THREADS": str(settings.threads),
        "PEERS_SCRIPTED": "1" if settings.scripted else "0",
        "PYTHONPATH": str(SERVED),
    }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def answers(url: str) -> bool:
    """Whether a GET is answered with a 2xx within a second."""
    try:
        with urllib.request.urlopen(url, timeout=1.0) as response:
            return bool(200 <= response.status < 300)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[Mapping[str, str], bytes]:
    """POST once; returns headers and body of the answer. Raises OSError, for an error status too."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")
    with urllib.request.urlopen(request, timeout=30.0) as response:
        return response.headers, response.read()
