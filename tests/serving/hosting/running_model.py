"""A model in memory, as a host has it."""

from __future__ import annotations

from hebe.machine.pinning import available_cores, place_lanes
from hebe.models.catalog import entry
from hebe.server_configuration import Lane, Placement


def whole(workers, cores, batch_size=32):
    return (Lane(Placement.MODEL_ON_HOST, workers, cores, batch_size),)


class Running:
    """A model in memory that can be split, and that the host is told to."""

    spec, version, identity, tiered, runs, degraded = entry("wnd", scale=1e-4), 1, "ab12", True, True, ()

    def __init__(self, fault=None):
        self.configuration, self.fault, self.splits, self.placed = whole(1, 1), fault, 1, []
        self.lanes = place_lanes(self.configuration, available_cores())
        self.idle, self.refuses = True, False

    def begin_shutdown(self):
        self.refuses = True

    def split_anew(self, placed):
        if self.fault is not None:
            raise self.fault
        self.placed.append(placed)
        self.lanes = placed.lanes
        self.configuration = tuple(each.lane for each in placed.lanes)
        self.splits += 1

    def refresh(self):
        raise self.fault

    def close(self):
        pass
