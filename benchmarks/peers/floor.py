"""The floor: the model in the event loop of uvicorn, in the project's own virtualenv. A limit, not a server."""

from __future__ import annotations

import sys
from pathlib import Path

from .installation import Installation
from .server import (
    HOST,
    RawEndpoint,
    RunningServer,
    ServedModel,
    Server,
    Settings,
    free_ports,
    model_environment,
    start_process,
)


class Floor(Server):
    """`uvicorn` of `served/floor_app.py`."""

    name = "floor"
    clients = ("wrk",)
    settings: Settings = Settings(workers=1, threads=1, scripted=True)

    def install(self, installation: Installation) -> None:
        """Nothing: uvicorn is among what Hebe's tests need."""

    def start(self, model: ServedModel, workspace: Path) -> RunningServer:
        """Start uvicorn."""
        (port,) = free_ports(1)
        application = ["floor_app:app", "--host", HOST, "--port", str(port), "--no-access-log"]
        command = [sys.executable, "-m", "uvicorn", *application, "--workers", str(self.settings.workers)]
        url = f"http://{HOST}:{port}/"
        environment = model_environment(model, self.settings)
        process = start_process(self.name, command, workspace, environment, url)
        return RunningServer(self, process, RawEndpoint(url))
