"""BentoML, a raw ASGI application mounted on its service."""

from __future__ import annotations

from pathlib import Path

from .installation import Installation, base_python
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

REQUIREMENTS = ["bentoml==1.4.39", "torch==2.13.0", "numpy>=2", "safetensors"]


class BentoML(Server):
    """`bentoml serve` of `served/bentoml_service.py`."""

    name = "bentoml"
    clients = ("wrk",)
    settings: Settings = Settings(workers=2, threads=1, scripted=True)

    def install(self, installation: Installation) -> None:
        """A virtualenv of its own."""
        self._bin = installation.virtualenv("bentoml", base_python(), REQUIREMENTS)

    def start(self, model: ServedModel, workspace: Path) -> RunningServer:
        """Start its supervisor, which starts the workers."""
        (port,) = free_ports(1)
        environment = {
            **model_environment(model, self.settings),
            "BENTOML_HOME": str((workspace / f"{self.name}-home").resolve()),
            "BENTOML_DO_NOT_TRACK": "True",
        }
        service = ["bentoml_service:Ranker", "--host", HOST, "--port", str(port)]
        command = [str(self._bin / "bentoml"), "serve", *service]
        ready = f"http://{HOST}:{port}/readyz"
        process = start_process(self.name, command, workspace, environment, ready)
        return RunningServer(self, process, RawEndpoint(f"http://{HOST}:{port}/raw/"))


class BentoMLEager(BentoML):
    """The same with the model as a plain module, as most people deploy it."""

    name = "bentoml-eager"
    settings = Settings(workers=2, threads=1, scripted=False)
