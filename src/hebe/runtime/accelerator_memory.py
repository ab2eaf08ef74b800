"""What may lie in the memory of one accelerator, and what does.

Without a GPU the accelerator is a second CPU device, whose memory is this machine's: then the budget alone says what
fits.
"""

from __future__ import annotations

import threading

from hebe.embeddings.store import StoreError


class AcceleratorMemory:
    """A budget of `capacity_bytes`, of which parts are reserved before they are used. Any thread may call it.

    Raises ValueError for a negative one.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"an accelerator's memory of {capacity_bytes:,} bytes: must be at least 0")
        self.capacity_bytes = capacity_bytes
        self._reserved: list[Reservation] = []
        self._lock = threading.Lock()

    @property
    def reserved_bytes(self) -> int:
        """What is reserved now."""
        with self._lock:
            return sum(reservation.size_bytes for reservation in self._reserved)

    @property
    def free_bytes(self) -> int:
        """What may still be reserved."""
        return self.capacity_bytes - self.reserved_bytes

    def reserve(self, size_bytes: int, what: str) -> Reservation:
        """Set `size_bytes` aside for `what`, to be released by its owner.

        Raises `StoreError`, which names what lies there already, when that is more than is free.
        """
        if size_bytes < 0:
            raise ValueError(f"{what}: {size_bytes:,} bytes: must be at least 0")
        with self._lock:
            free = self.capacity_bytes - sum(reservation.size_bytes for reservation in self._reserved)
            if size_bytes > free:
                there = ", ".join(f"{each.size_bytes:,} of {each.what}" for each in self._reserved)
                raise StoreError(
                    f"{what} need {size_bytes:,} bytes of the accelerator's memory and {free:,} of "
                    f"{self.capacity_bytes:,} are free{f' beside {there}' if there else ''}: "
                    "choose fewer hot rows, let fewer workers share it, or give it more memory"
                )
            reservation = Reservation(self, size_bytes, what)
            self._reserved.append(reservation)
        return reservation

    def _release(self, reservation: Reservation) -> None:
        with self._lock:
            # By identity: two of the same size for the same thing are two.
            self._reserved = [other for other in self._reserved if other is not reservation]


class Reservation:
    """A part of an `AcceleratorMemory`, made by `reserve`; a context that releases it at its end."""

    def __init__(self, memory: AcceleratorMemory, size_bytes: int, what: str) -> None:
        self.size_bytes = size_bytes
        self.what = what
        self._memory = memory

    def release(self) -> None:
        """Give it back. Releasing twice is harmless."""
        self._memory._release(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
