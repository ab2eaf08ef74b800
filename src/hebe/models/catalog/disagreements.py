"""What the sources say differently of models that they call by the same name, or that stand for the same one.

One text for all entries of a model, so that each tells of the others. RecOS publishes no configuration.
"""

from __future__ import annotations

_INTERACTION = (
    "Hera says that its models are DeepRecSys' (DeepRecInfra), which concatenate, yet describes the dot product, which "
    "is taken for its entries."
)
RM1 = (
    "Sources disagree: Hercules' RMC1 has about 10 tables of 1M to 5M rows, a dense tower of 256-128-32 and 20 ms; "
    "DeepRecSys' RM1 8 tables of 4M rows, dim 32 (4.1 GB), 128-64-32 and 100 ms; Hera's DLRM (A) 8 tables of dim 64 "
    f"(2 GB), 128-64-64 and 100 ms. {_INTERACTION}"
)
RM2 = (
    "Sources disagree: Hercules' RMC2 has about 100 tables of 1M to 5M rows, dim not stated, a top tower of 512-128-1 "
    "and 50 ms; DeepRecSys' RM2 32 tables of 0.5M rows, dim 64 (4.1 GB), 128-64-1 and 400 ms; Hera's DLRM (B) 40 "
    f"tables of dim 64 (25 GB), 128-64-1 and 400 ms; Kairos' RM2 350 ms, at p99. {_INTERACTION}"
)
RM3 = (
    "Sources disagree: Hercules' RMC3 has about 10 tables of 10M to 20M rows, a dense tower of 2560-512-32, a top "
    "tower of 512-128-1 and 50 ms; DeepRecSys' RM3 and Hera's DLRM (C) 10 tables of 2M rows, dim 32 (2.5 GB), "
    f"2560-1024-256-32, 512-256-1 and 100 ms. {_INTERACTION}"
)
DLRM_D = f"No other source has it. {_INTERACTION}"
MT_WND = (
    "Sources disagree: Hercules has 26 tables of 3 to 40M rows, towers of 1024-512-256 without a trunk and 100 ms; "
    "DeepRecSys 43 tables (3.9 GB), a trunk of 1024-512, towers of 512-256-128 and 25 ms; Kairos 25 ms, at p99."
)
WND = (
    "Sources disagree: Hera and DeepRecSys have the same model, whose last layer (1) Hera leaves out, and 25 ms at "
    "p95; Kairos has 25 ms at p99."
)
NCF = (
    "Sources disagree: Hera's MLP is 256-256-128, DeepRecSys' 256-256-128-64-64; both have 5 ms at p95, Kairos 5 ms at "
    "p99."
)
DIN = (
    "Sources disagree: Hercules has 3 tables of 0.1M to 600M rows and 100 to 1000 behaviours; DeepRecSys a table for "
    "each of 250 behaviours (5.9 GB) and 3 lookups a table; Hera 4 tables (2.7 GB) and 3 lookups. All have 100 ms."
)
DIEN = (
    "Sources disagree: Hercules has 3 tables of 0.1M to 600M rows, 100 to 1000 behaviours and 100 ms; Hera and "
    "DeepRecSys 43 tables (3.9 GB) of one lookup each and 35 ms at p95; Kairos 35 ms at p99."
)
