"""How large an update message may be, how long a row may wait for it, and how a producer batches."""

from __future__ import annotations

from dataclasses import dataclass

MOST_BYTES = 16 << 20
"""No longer message is written or read."""
MOST_DIM = 1 << 16
MOST_PARTITIONS = 1 << 16
LONGEST_LINGER_S = 3600.0
"""No row waits longer for its message to fill."""


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How rows become messages. Raises ValueError naming a field that is out of range.

    `max_rows` keys or `max_message_bytes` fill a message; what is not full goes out `linger_s` seconds after its first
    row. `max_waiting_bytes` bounds what waits for a log that does not take messages; `send` waits for room at most
    `send_timeout_s` seconds.
    """

    max_rows: int = 8192
    max_message_bytes: int = 900_000
    linger_s: float = 0.1
    max_waiting_bytes: int = 256 << 20
    send_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("max_rows", self.max_rows, 1, 1 << 20),
            ("max_message_bytes", self.max_message_bytes, 1024, MOST_BYTES),
            ("linger_s", self.linger_s, 0, LONGEST_LINGER_S),
            ("max_waiting_bytes", self.max_waiting_bytes, 1024, 1 << 40),
            ("send_timeout_s", self.send_timeout_s, 0, 86400),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}: must lie in [{least}, {most}]")
