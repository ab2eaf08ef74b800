"""Two models on two server types over some hours, as `hebe plan provision` reads them."""

from pathlib import Path

import numpy as np

from hebe.capacity import plan_provision

EFFICIENCY = """model,server_type,qps,power_watts,estimated,configuration.workers,configuration.fused
rm1,cpu,100,100,false,10,true
rm1,gpu,200,250,true,,
rm2,cpu,50,100,,4,
rm2,gpu,400,260,,,
"""
SERVERS = "server_type,available,price_per_hour\ncpu,700,1.0\ngpu,50,3.5\n"
HOURS = 6


def diurnal(step_s=600.0):
    times = np.arange(0, HOURS * 3600, step_s)
    shape = 0.6 - 0.4 * np.cos(2 * np.pi * times / (24 * 3600))
    return times, 10_000 * shape, 15_000 * shape


def wide(step_s=600.0):
    lines = [f"{time:g},{a:.1f},{b:.1f}" for time, a, b in zip(*diurnal(step_s), strict=True)]
    return "\n".join(["time_s,rm1,rm2", *lines]) + "\n"


def write_provisioning_files():
    """`efficiency.csv`, `servers.csv` and `loads.csv`, in the folder that is worked in."""
    for name, text in (("efficiency", EFFICIENCY), ("servers", SERVERS), ("loads", wide())):
        Path(f"{name}.csv").write_text(text, encoding="utf-8")


def plan_day(**changes):
    """The plan of these files, with as little search as there may be, and no baselines."""
    files = {name: f"{name}.csv" for name in ("efficiency", "servers", "loads")}
    usual = {"set_up_s": 60.0, "gap": 0.01, "time_limit_s": 0.0, "baselines": False}
    return plan_provision(**(files | usual | changes))
