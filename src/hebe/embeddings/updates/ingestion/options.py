"""How fast online updates are applied, in how large pieces, and how patiently."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IngestionOptions:
    """How fast updates are applied; names and defaults are those of HPS' `update_source` block where it has them.

    At most `max_rows_per_s` rows and deletes a second (None: as fast as it goes), as soon as they come but no oftener
    than every `interval_s` seconds: what comes within an interval is applied together, of a key's rows the last one. A
    store is given at most `max_batch_size` keys at once. Offsets are committed after `max_commit_interval` batches of a
    partition, every second at least, and whenever nothing is left to do. Raises ValueError naming a field out of range.
    """

    max_rows_per_s: float | None = None
    interval_s: float = 0.0
    max_batch_size: int = 8192
    max_commit_interval: int = 32
    failure_backoff_ms: float = 50.0
    poll_timeout_ms: float = 500.0

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("max_rows_per_s", self.max_rows_per_s, 1e-3, 1e12),
            ("interval_s", self.interval_s, 0, 86400),
            ("max_batch_size", self.max_batch_size, 1, 1 << 24),
            ("max_commit_interval", self.max_commit_interval, 1, 1 << 24),
            ("failure_backoff_ms", self.failure_backoff_ms, 1, 600_000),
            ("poll_timeout_ms", self.poll_timeout_ms, 1, 600_000),
        ):
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} is {value}: must lie in [{least}, {most}]")
