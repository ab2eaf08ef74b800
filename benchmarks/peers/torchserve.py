"""TorchServe 0.12.0, the last one: a Java front end, Python workers, a model archive."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .installation import Installation, base_python
from .processes import ServerError
from .server import (
    HOST,
    SERVED,
    RawEndpoint,
    RunningServer,
    ServedModel,
    Server,
    Settings,
    free_ports,
    model_environment,
    start_process,
)

# Its workers import yaml and pkg_resources (which setuptools has dropped since) without asking for them.
REQUIREMENTS = [
    *("torchserve==0.12.0", "torch-model-archiver==0.12.0", "torch==2.13.0", "numpy>=2", "safetensors"),
    *("pyyaml", "setuptools<81"),
]

# Its own configuration logs every request to several files.
QUIET = """<Configuration status="WARN">
  <Appenders><Console name="console"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""


class TorchServe(Server):
    """`torchserve --start --foreground` of `served/torchserve_handler.py`."""

    name = "torchserve"
    clients = ("wrk",)
    settings: Settings = Settings(workers=2, threads=1, scripted=True)

    def install(self, installation: Installation) -> None:
        """Java, and a virtualenv of its own."""
        self._java = installation.debian_program("java", "default-jre-headless")
        self._bin = installation.virtualenv("torchserve", base_python(), REQUIREMENTS)

    def start(self, model: ServedModel, workspace: Path) -> RunningServer:
        """Archive the handler and start the front end with it."""
        store = (workspace / f"{self.name}-store").resolve()
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir(parents=True)
        self._archive(store)
        inference, management, metrics, grpc, grpc_management = free_ports(5)
        configuration = store / "config.properties"
        configuration.write_text(
            f"inference_address=http://{HOST}:{inference}\nmanagement_address=http://{HOST}:{management}\n"
            f"metrics_address=http://{HOST}:{metrics}\n"
            f"grpc_inference_port={grpc}\ngrpc_management_port={grpc_management}\n"
            f"default_workers_per_model={self.settings.workers}\njob_queue_size=1000\n"
            f"model_store={store}\nload_models=ranker.mar\ndisable_token_authorization=true\n"
            "disable_system_metrics=true\n"
        )
        log_configuration = store / "log4j2.xml"
        log_configuration.write_text(QUIET)
        command = [
            *(str(self._bin / "torchserve"), "--start", "--foreground", "--ncs", "--disable-token-auth"),
            *("--model-store", str(store), "--ts-config", str(configuration)),
            *("--log-config", str(log_configuration)),
        ]
        environment = {
            **model_environment(model, self.settings),
            "PATH": f"{self._bin}:{Path(self._java).parent}:/usr/bin:/bin",
            "TEMP": str(store),
            "LOG_LOCATION": str(store / "logs"),
            "METRICS_LOCATION": str(store / "logs"),
        }
        ready = f"http://{HOST}:{inference}/ping"
        process = start_process(self.name, command, workspace, environment, ready)
        return RunningServer(self, process, RawEndpoint(f"http://{HOST}:{inference}/predictions/ranker"))

    def _archive(self, store: Path) -> None:
        archiver = [
            *(str(self._bin / "torch-model-archiver"), "--model-name", "ranker", "--version", "1.0"),
            *("--handler", str(SERVED / "torchserve_handler.py"), "--export-path", str(store)),
        ]
        done = subprocess.run(archiver, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerError(f"torchserve: torch-model-archiver failed:\n{done.stdout}{done.stderr}")


class TorchServeEager(TorchServe):
    """The same with the model as a plain module, as most people deploy it."""

    name = "torchserve-eager"
    settings = Settings(workers=2, threads=1, scripted=False)
