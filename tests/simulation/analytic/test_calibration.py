"""The analytic server, with the constants as they stand, beside what was measured of this server.

Measured on two cores of a Xeon of 2.7 GHz, of whose cache two cores' share is assumed: execution.json, sparse.json and
overload.json of docs/figures at commit 224757a, and in-process throughput of serve.json since then.
"""

import numpy as np
import pytest

from hebe.models import catalog
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.calibration import HEBE
from hebe.spec import ServerSpec

MACHINE = ServerSpec(
    "measured",
    cores=2,
    memory_bytes=25 * 10**9,
    memory_bandwidth_bytes_per_s=60e9,  # more than two cores can take
    clock_hz=2.7e9,
    flops_per_cycle_per_core=64.0,
    llc_bytes=32 * 2**20,
)
SCRIPTED_QPS, SCRIPTED_THREADS_QPS = 1314.1, 2442.7
COMPILED_QPS, COMPILED_THREADS_QPS = 1320.6, 2550.4
GATHER_GB_PER_S = 5.19


@pytest.mark.parametrize(
    ("model", "scale", "items", "workers", "measured_qps"),
    [
        ("peers-dlrm", 1.0, 32, 1, SCRIPTED_QPS),
        ("peers-dlrm", 1.0, 32, 2, SCRIPTED_THREADS_QPS),
        ("dlrm-rmc1", 1.0, 256, 1, 160.3),
        ("dlrm-rmc1", 1.0, 238, 1, 186.5),  # production sizes, of that mean
        ("mt-wnd", 0.1, 238, 1, 51.9),
    ],
)
def test_throughput_is_foretold_within_a_quarter(model, scale, items, workers, measured_qps):
    server = AnalyticServer(MACHINE, catalog.entry(model, scale=scale), np.array([items]), None, HEBE)
    profile = server.latency_profile(Lane(Placement.MODEL_ON_HOST, workers, 1, 1024), [items])
    assert 0.74 < workers / profile.service_s[0] / measured_qps < 1.26


def test_the_gather_rate_is_the_measured_one():
    assert HEBE.core_gather_bytes_per_s == pytest.approx(1e9 * GATHER_GB_PER_S, rel=0.01)


def test_the_co_residence_lies_among_the_measured_ones():
    assert 2 * COMPILED_QPS / COMPILED_THREADS_QPS - 1 < HEBE.co_residence < 2 * SCRIPTED_QPS / SCRIPTED_THREADS_QPS - 1
