"""Two models on two server types over some hours, as `hebe plan provision` reads them."""

import numpy as np

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
