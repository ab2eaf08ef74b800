"""Efficiency tuples made up for the tests: the search for real ones takes half a minute."""

from dataclasses import replace

import numpy as np

from hebe.profile import EfficiencyTuple
from hebe.simulation.analytic.server_types import HERCULES, HERCULES_AVAILABLE
from hebe_lab.studies.hercules.fleet import LIGHT_RMC2, MODELS, Pair, fleet_of, model_of
from hebe_lab.studies.hercules.schedulers import Effort

ON_T2 = dict(zip((*MODELS, LIGHT_RMC2), (2900.0, 40.0, 480.0, 2100.0, 80.0, 100.0, 120.0), strict=True))
"""Queries/s of each model on T2."""


SETTINGS = {
    "placement": "sparse-on-host", "workers": 2, "cores_per_worker": 3, "batch_size": 64, "dense_workers": 4,
    "fused_items": 512, "beside_placement": "model-on-host", "beside_workers": 5, "beside_cores_per_worker": 1,
    "beside_batch_size": 128, "beside_dense_workers": 0, "beside_fused_items": 0,
}  # fmt: skip


def made_up(*_):
    """Near-memory ranks help sums, accelerators the late models; power rises with both."""
    pairs = {}
    for name, qps in ON_T2.items():
        for kind, server in HERCULES.items():
            gain = 0.7 if kind == "T1" else 1.0
            if name in ("RMC1", "RMC2"):
                gain *= 1.0 + 0.9 * server.near_memory_ranks ** (0.5 if name == "RMC1" else 0.8)
            if server.accelerator is not None:
                gain *= 1.5 if name.startswith("RMC") else 12.0
            watts = server.peak_power_watts + (server.accelerator.peak_power_watts if server.accelerator else 0.0)
            best = EfficiencyTuple(name, kind, gain * qps, watts, SETTINGS, estimated=True)
            baseline = 0.0 if (name, kind) == ("RMC2", "T1") else 0.5 * gain * qps
            pairs[name, kind] = Pair(best, baseline)
    return pairs


PAIRS = made_up()


def made_up_changes(cases, _quick, _progress):
    """Pairs with something changed do twice as much where they have fewer lookups, and as much as before elsewhere."""
    names = {model_of(name).name: name for name in MODELS}
    found = []
    for case in cases:
        name = names[case.model.name]
        lighter = case.model.lookups_per_item < model_of(name).lookups_per_item
        pair = PAIRS[name, case.server.name]
        found.append(replace(pair, best=replace(pair.best, qps=pair.best.qps * (2.0 if lighter else 1.0))))
    return found


FLEET = fleet_of(PAIRS, MODELS, HERCULES_AVAILABLE)
EVENLY = np.array([ON_T2[name] for name in MODELS])
"""The load of each model that needs equally many T2."""

EFFORT = Effort(seeds=2, target_gap=0.01, rate=0.1)
