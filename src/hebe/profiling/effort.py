"""How thoroughly a configuration is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly a configuration is measured; see `QpsSearch`. `longest_s`: after which it is ended, and given up
    where there were fewer than two rounds by then, since those of one say nothing of their spread."""

    probe_s: float = 2.0
    warm_up_s: float = 0.3
    rounds: int = 3
    resolution: float = 0.03
    longest_s: float = 180.0
    highest_qps: float = 1e6


QUICK = Effort(probe_s=0.7, warm_up_s=0.15, rounds=2, resolution=0.06, longest_s=60.0)
