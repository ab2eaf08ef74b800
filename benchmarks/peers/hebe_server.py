"""Hebe itself, as its command line starts it, with its defaults."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import hebe

from .installation import Installation
from .server import (
    HOST,
    ProtocolEndpoint,
    RunningServer,
    ServedModel,
    Server,
    free_ports,
    start_process,
)

HEBE = [sys.executable, "-c", "from hebe.cli.main import main; main()"]
HEBE_ENVIRONMENT = {"PYTHONPATH": str(Path(hebe.__file__).resolve().parents[1])}
"""The command `hebe` of the very package that runs this, installed or not."""


class Hebe(Server):
    """`hebe serve` with nothing but ports given."""

    name = "hebe"
    clients = ("perf_analyzer", "wrk")
    settings = None

    def install(self, installation: Installation) -> None:
        """Nothing: it is what runs this."""

    def start(self, model: ServedModel, workspace: Path) -> RunningServer:
        """Start it and ask its model configuration who makes the batches."""
        http, grpc, metrics = free_ports(3)
        ports = ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
        command = [*HEBE, "serve", str(model.repository.resolve()), "--host", HOST, *ports]
        ready = f"http://{HOST}:{http}/v2/models/{model.name}/ready"
        process = start_process(self.name, command, workspace, HEBE_ENVIRONMENT, ready)
        try:
            with urllib.request.urlopen(f"http://{HOST}:{http}/v2/models/{model.name}/config") as response:
                batched = int(json.load(response).get("max_batch_size", 0)) > 0
        except BaseException:
            process.stop()
            raise
        return RunningServer(self, process, ProtocolEndpoint(f"{HOST}:{http}", f"{HOST}:{grpc}", batched))
