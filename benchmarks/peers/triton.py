"""Triton Inference Server 2.51 without a container: the binaries of the wheel nvidia-pytriton.

Two ways to serve a Python model with it. `Triton` binds a function through pytriton, whose proxy process adds a hop.
`TritonPythonBackend` is what a Triton user writes: a model repository, a config.pbtxt, a `TritonPythonModel`.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

from .installation import Installation, InstallError
from .server import (
    HOST,
    SERVED,
    ProtocolEndpoint,
    RunningServer,
    ServedModel,
    Server,
    Settings,
    free_ports,
    model_environment,
    start_process,
)

PYTHON = "/usr/bin/python3"
"""The backend's stubs link to libpython3.x.so, which Debian's own interpreter has."""
REQUIREMENTS = ["nvidia-pytriton==0.7.0", "numpy<2", "torch==2.13.0", "safetensors"]
MAX_ITEMS = 1024


class Triton(Server):
    """Through pytriton."""

    name = "triton"
    clients = ("perf_analyzer",)
    settings: Settings = Settings(workers=1, threads=2, scripted=True)

    def install(self, installation: Installation) -> None:
        """A virtualenv on Debian's Python."""
        self._bin = _install(installation)

    def start(self, model: ServedModel, workspace: Path) -> RunningServer:
        """Start pytriton, which starts tritonserver and its proxies."""
        http, grpc = free_ports(2)
        command = [str(self._bin / "python"), str(SERVED / "triton_server.py"), str(http), str(grpc)]
        environment = {
            **model_environment(model, self.settings),
            "PYTRITON_HOME": str((workspace / f"{self.name}-home").resolve()),
        }
        ready = f"http://{HOST}:{http}/v2/models/{model.name}/ready"
        process = start_process(self.name, command, workspace, environment, ready)
        return RunningServer(self, process, ProtocolEndpoint(f"{HOST}:{http}", f"{HOST}:{grpc}", batched=True))


class TritonPythonBackend(Server):
    """Triton's own Python backend, `settings.workers` instances."""

    name = "triton-backend"
    clients = ("perf_analyzer",)
    settings: Settings = Settings(workers=2, threads=1, scripted=True)

    def install(self, installation: Installation) -> None:
        """The same virtualenv."""
        self._bin = _install(installation)

    def start(self, model: ServedModel, workspace: Path) -> RunningServer:
        """Lay out a repository and a backend folder, and start tritonserver on them."""
        site, python_version = _site_packages(self._bin)
        triton = site / "pytriton" / "tritonserver"
        repository, backends = workspace / f"{self.name}-repository", workspace / f"{self.name}-backends"
        for folder in (repository, backends):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(triton / "backends", backends)
        stub = triton / "python_backend_stubs" / python_version / "triton_python_backend_stub"
        _link(backends / "python" / stub.name, stub)
        version = repository / model.name / "1"
        version.mkdir(parents=True)
        shutil.copy(SERVED / "triton_python_model.py", version / "model.py")
        (repository / model.name / "config.pbtxt").write_text(_config(model, self.settings))

        http, grpc = free_ports(2)
        command = [
            *(str(triton / "bin" / "tritonserver"), f"--model-repository={repository.resolve()}"),
            *(f"--backend-directory={backends.resolve()}", "--allow-metrics=false"),
            *(f"--http-address={HOST}", f"--http-port={http}", f"--grpc-address={HOST}", f"--grpc-port={grpc}"),
        ]
        environment = model_environment(model, self.settings)
        # The stub reads no PYTHONPATH: it takes the virtualenv whose python3 is first on the PATH.
        environment["PATH"] = f"{self._bin.resolve()}:{os.environ['PATH']}"
        ready = f"http://{HOST}:{http}/v2/models/{model.name}/ready"
        process = start_process(self.name, command, workspace, environment, ready)
        return RunningServer(self, process, ProtocolEndpoint(f"{HOST}:{http}", f"{HOST}:{grpc}", batched=True))


def _install(installation: Installation) -> Path:
    if not Path(PYTHON).is_file():
        raise InstallError(f"{PYTHON} is missing: Triton's binaries want Debian's own Python; install python3-venv")
    return installation.virtualenv("triton", PYTHON, REQUIREMENTS)


def _site_packages(bin_folder: Path) -> tuple[Path, str]:
    site = next(bin_folder.parent.glob("lib/python3.*/site-packages"))
    return site.resolve(), site.parent.name.removeprefix("python")


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _config(model: ServedModel, settings: Settings) -> str:
    spec = tomllib.loads((model.folder / "model.toml").read_text())["spec"]
    inputs = [
        *((feature["name"], "TYPE_INT64", feature["lookups"]) for feature in spec["features"]),
        ("dense", "TYPE_FP32", spec["dense_dim"]),
    ]
    listed = ",\n".join(f'  {{ name: "{name}" data_type: {kind} dims: [ {width} ] }}' for name, kind, width in inputs)
    return (
        f'name: "{model.name}"\nbackend: "python"\nmax_batch_size: {MAX_ITEMS}\n'
        f"input [\n{listed}\n]\n"
        'output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        f"instance_group [ {{ count: {settings.workers} kind: KIND_CPU }} ]\n"
    )
