"""Options of ingestion that are out of range."""

import math

import pytest

from hebe.embeddings.updates.ingestion.options import IngestionOptions


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_rows_per_s", 0),
        ("interval_s", -1),
        ("max_batch_size", 0),
        ("max_commit_interval", 0),
        ("failure_backoff_ms", 0),
        ("poll_timeout_ms", math.nan),
    ],
)
def test_options_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        IngestionOptions(**{field: value})
