"""wrk, the client for servers that take any HTTP body: it costs less than perf_analyzer, so it shows more of them.

Its percentiles are not those of the latencies that it measured. Before post.lua sees them, wrk corrects them for
coordinated omission (`stats_correct` in its stats.c): for each query of more than twice the mean time between a
connection's queries it counts those that would have been sent meanwhile and would have waited, too. A closed loop never
sent them, so a few stalls lift the p99 far above what 99 of 100 of its queries took.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .installation import Installation
from .measurement import ClientStalledError, Measurement, MeasurementError

SCRIPT = Path(__file__).with_name("post.lua")
WARM_UP_S = 1
CORRECTED = "latencies corrected by wrk for coordinated omission"
ANSWER_TIMEOUT_S = 10
PATIENCE_S = 20.0


class Wrk:
    """Runs wrk in a closed loop on one thread; made by `install`."""

    name = "wrk"

    def __init__(self, program: str) -> None:
        self._program = program

    @classmethod
    def install(cls, installation: Installation) -> Wrk:
        """Find wrk, or install Debian's. Raises `InstallError`."""
        return cls(installation.debian_program("wrk", "wrk"))

    def measure(
        self, url: str, bodies: Path, body_count: int, headers: Mapping[str, str], concurrency: int, seconds: float
    ) -> Measurement:
        """Warm up, then time `concurrency` connections for `seconds`, rounded up to whole ones (wrk has no others).

        Posts the files `bodies`-0 and so on in turn. Raises `MeasurementError`, also for any answer but a 2xx.
        """
        arguments = [str(bodies), str(body_count), *(f"{name}: {value}" for name, value in headers.items())]
        self._run(url, arguments, concurrency, WARM_UP_S)
        return self._run(url, arguments, concurrency, max(1, round(seconds)))

    def _run(self, url: str, arguments: list[str], concurrency: int, seconds: int) -> Measurement:
        command = [
            *(self._program, "-t", "1", "-c", str(concurrency), "-d", f"{seconds}s"),
            *("--timeout", f"{ANSWER_TIMEOUT_S}s", "-s", str(SCRIPT), url, "--", *arguments),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            raise ClientStalledError(f"wrk did not end within {seconds + PATIENCE_S:.0f} s") from None
        return parse_output(done.stdout, done.stderr)


def parse_output(stdout: str, stderr: str = "") -> Measurement:
    """Read the line that post.lua prints."""
    line = next((line for line in stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise MeasurementError(f"wrk printed no result: {(stdout + stderr).strip()}")
    result = json.loads(line.removeprefix("RESULT "))
    if result["status_errors"] or result["socket_errors"] or not result["requests"]:
        raise MeasurementError(
            f"wrk: of {result['requests']} requests {result['status_errors']} were answered with an error status, "
            f"{result['socket_errors']} failed"
        )
    return Measurement(
        queries_per_s=result["requests"] / (result["duration_us"] / 1e6),
        p50_ms=result["p50_us"] / 1e3,
        p99_ms=result["p99_us"] / 1e3,
    )
