"""Triton's perf_analyzer, the client for servers that speak the Open Inference Protocol.

The PyPI package of that name is empty; the program comes in tritonclient's wheel (2.51.0 is the newest that runs
with glibc 2.36) and wants two libraries beside it.
"""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

from .installation import Installation
from .measurement import ClientStalledError, Measurement, MeasurementError
from .queries import ITEMS

WINDOWS = 3
"""perf_analyzer reports over this many windows at least; ours are a third of the asked time each."""
WHEELS = ["tritonclient==2.51.0", "nvidia-cuda-runtime-cu12==12.9.79"]
PATIENCE_S = 30.0


class PerfAnalyzer:
    """Runs perf_analyzer in a closed loop; made by `install`."""

    name = "perf_analyzer"

    def __init__(self, program: Path, libraries: Path) -> None:
        self._program = program
        self._libraries = libraries

    @classmethod
    def install(cls, installation: Installation) -> PerfAnalyzer:
        """Fetch the program and what it links to. Raises `InstallError`."""
        installation.debian_library("libb64.so.0d", "libb64-0d")
        home = installation.unpacked_wheels("perf_analyzer", WHEELS)
        program = next(home.glob("**/bin/perf_analyzer"))
        program.chmod(0o755)
        return cls(program, next(home.glob("**/libcudart.so.12")).parent)

    def measure(
        self, model: str, protocol: str, address: str, data: Path, batched: bool, concurrency: int, seconds: float
    ) -> Measurement:
        """Time `concurrency` callers for about `seconds`. Raises `MeasurementError`.

        `protocol` is "http" or "grpc"; `data` is a file of `QuerySet.write_perf_analyzer_data`.
        """
        report = data.with_name(f"perf_analyzer-{os.getpid()}.csv")
        command = [
            *(str(self._program), "-m", model, "-i", protocol, "-u", address, "-b", str(ITEMS if batched else 1)),
            *("--input-data", str(data), "--concurrency-range", str(concurrency), "-f", str(report)),
            # The spread is judged over our own rounds, so any three windows are taken as stable.
            *("-p", str(round(seconds * 1000 / WINDOWS)), "-s", "999", "-r", str(WINDOWS)),
        ]
        path = os.pathsep.join(filter(None, [str(self._libraries), os.environ.get("LD_LIBRARY_PATH")]))
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "LD_LIBRARY_PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds + PATIENCE_S,
                check=False,
            )
            if done.returncode != 0 or not report.is_file():
                end = "\n".join(done.stdout.strip().splitlines()[-8:])
                raise MeasurementError(f"perf_analyzer failed ({done.returncode}):\n{end}")
            return parse_report(report.read_text(), ITEMS if batched else 1)
        except subprocess.TimeoutExpired:
            raise ClientStalledError(f"perf_analyzer did not end within {seconds + PATIENCE_S:.0f} s") from None
        finally:
            report.unlink(missing_ok=True)


def parse_report(text: str, inferences_per_query: int) -> Measurement:
    """Read the CSV report of a run at one concurrency; it counts items where it made the batches."""
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != 1:
        raise MeasurementError(f"perf_analyzer's report has {len(rows)} rows, one was expected")
    try:
        measured = Measurement(
            queries_per_s=float(rows[0]["Inferences/Second"]) / inferences_per_query,
            p50_ms=float(rows[0]["p50 latency"]) / 1e3,
            p99_ms=float(rows[0]["p99 latency"]) / 1e3,
        )
    except (KeyError, TypeError, ValueError) as fault:
        raise MeasurementError(f"perf_analyzer's report lacks a number: {fault}") from None
    if measured.queries_per_s <= 0:
        raise MeasurementError("perf_analyzer saw no answer in its windows; give it more --seconds")
    return measured
