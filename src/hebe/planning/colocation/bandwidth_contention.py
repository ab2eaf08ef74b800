"""How much models that share a memory slow each other down, told from how each slows itself down alone.

A model that moves much memory shows the memory's latency in its own profile: each further worker serves less than the
one before, long before the bandwidth is used up. The model that moves the most gives the curve, by how much a core
is slowed down at a given traffic. Every model follows it as far as it depends on memory: in the proportion of what
its core moves to what a core moves at most. (Hera's Algorithm 1 knows no slowdown below the full bandwidth.)

    factor of a model     1 + share * (slowdown - 1)
    demand of a model     its traffic alone * its factor alone: what it would move were memory unloaded
    together              slowdown at the sum of all demands; each serves (factor alone / factor together) of its own
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class BandwidthContention:
    """For some models, each with 0..cores cores, float64 `[models, cores + 1]` each.

    `demand`: bytes/s were memory unloaded; `share`: how far a core depends on memory, 0 to 1; `alone`: the factor by
    which its own traffic slows each down. `demands` and `slowdowns` are the knots of the memory's curve.
    """

    bandwidth_bytes_per_s: float
    demand: FloatArray
    share: FloatArray
    alone: FloatArray
    demands: FloatArray
    slowdowns: FloatArray

    @classmethod
    def of(cls, qps: FloatArray, traffic: FloatArray, busy: FloatArray, bandwidth: float) -> BandwidthContention:
        """From what each model serves and moves alone, and how many of the cores are then `busy` with it, float64
        `[models, cores + 1]` each."""
        moved, slowdowns = _curve(qps, traffic, busy)
        factor = np.interp(traffic, moved, slowdowns)
        a_core = np.divide(traffic * factor, busy, out=np.zeros_like(traffic), where=busy > 0)
        most = float(a_core.max(initial=0.0))
        share = a_core / most if most > 0 else a_core
        alone = 1.0 + share * (factor - 1.0)
        last = float(slowdowns[-1])
        # Beyond what was measured nothing is known but that the bandwidth is the end: from there on all wait in turn.
        ends = np.array([1.0, 64.0]) * bandwidth * last
        demands = np.concatenate([moved * slowdowns, ends])
        return cls(bandwidth, traffic * alone, share, alone, demands, np.concatenate([slowdowns, ends / bandwidth]))

    def only(self, rows: npt.NDArray[np.intp]) -> BandwidthContention:
        """Of some of the models, by the same curve."""
        of_models = (self.demand[rows], self.share[rows], self.alone[rows])
        return BandwidthContention(self.bandwidth_bytes_per_s, *of_models, self.demands, self.slowdowns)

    @property
    def quiet_bytes_per_s(self) -> float:
        """The largest demand that slows nobody down."""
        return float(self.demands[self.slowdowns <= 1.0][-1])

    def kept_on(self, models: IntArray, cores: IntArray | int) -> FloatArray:
        """`kept` by models, intp `[sets, size]`, that run together on so many cores each."""
        at = models, cores
        return self.kept(self.demand[at], self.share[at], self.alone[at])

    def kept(self, demand: FloatArray, share: FloatArray, alone: FloatArray) -> FloatArray:
        """What is kept of their throughput by models that run together, all float64 `[sets, size]`, in (0, 1].

        A model of its own keeps all of it: between the curve's knots its factor may come out below that measured
        alone, which is the least that it is.
        """
        slowdown = np.interp(demand.sum(axis=1), self.demands, self.slowdowns)[:, None]
        factor = np.maximum(1.0 + share * (slowdown - 1.0), alone)
        moved = (demand / factor).sum(axis=1, keepdims=True)
        # Who waits less than the curve says moves more; the bandwidth is the end all the same.
        fit = self.bandwidth_bytes_per_s / np.maximum(moved, self.bandwidth_bytes_per_s)
        return np.asarray(alone / factor * fit)


def _curve(qps: FloatArray, traffic: FloatArray, busy: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The memory's slowdown by what is moved, both increasing, from (0, 1): of the model that moves the most."""
    hungriest = int(traffic.max(axis=1).argmax())
    served, moved, counts = qps[hungriest], traffic[hungriest], busy[hungriest]
    a_core = np.divide(served, counts, out=np.zeros_like(served), where=counts > 0)
    best = int(a_core.argmax())
    # Fewer cores than serve best each are short of something else: queries wait for a worker.
    used = np.arange(len(counts)) > best
    used &= (a_core > 0) & (moved > moved[best])
    slowdowns = np.maximum.accumulate(a_core[best] / a_core[used])
    rising = np.maximum.accumulate(moved[used])
    knots, at = np.unique(np.concatenate([[0.0, moved[best]], rising]), return_index=True)
    return knots, np.concatenate([[1.0, 1.0], slowdowns])[at]
