"""Thousands of instances as sub-systems that decide on their own (POP, Narayanan 2021; Kairos section 6).

The time of a matching grows faster than its size, so a large fleet is dealt into partitions, each a small fleet with
the same mix of server types, and each query goes to one of them. What that costs in quality shrinks with the number
of instances in a partition.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def deal_instances(types: Sequence[Hashable], partitions: int) -> list[int]:
    """The partition, from 0, of each instance, given the instances' types.

    Of every type, and of all types together, two partitions hold numbers that differ by at most one. Raises
    `ValueError` unless there are at least as many instances as partitions, and one partition.
    """
    if not 1 <= partitions <= max(len(types), 1):
        raise ValueError(f"partitions is {partitions}: must be from 1 to the number of instances, {len(types)}")
    dealt = [0] * len(types)
    by_type: dict[Hashable, list[int]] = {}
    for instance, kind in enumerate(types):
        by_type.setdefault(kind, []).append(instance)
    order = (instance for instances in by_type.values() for instance in instances)
    for place, instance in enumerate(order):  # a type goes on where the one before it ended
        dealt[instance] = place % partitions
    return dealt


class PartitionChooser:
    """Chooses each arriving query's partition: where the least waits, and of equals the next in turn."""

    def __init__(self, partitions: int) -> None:
        if partitions < 1:
            raise ValueError(f"partitions is {partitions}: must be at least 1")
        self._partitions = partitions
        self._next = 0

    def choose(self, waiting: Sequence[float] | None = None) -> int:
        """The next query's partition. `waiting` is what waits at each (queries, or seconds of work); None: in turn."""
        if waiting is None:
            chosen = self._next
        else:
            if len(waiting) != self._partitions:
                raise ValueError(f"waiting has {len(waiting)} entries for {self._partitions} partitions")
            turn = self._next
            chosen = min(range(self._partitions), key=lambda at: (waiting[at], (at - turn) % self._partitions))
        self._next = (chosen + 1) % self._partitions
        return chosen
