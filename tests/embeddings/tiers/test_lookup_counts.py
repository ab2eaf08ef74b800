from dataclasses import astuple, fields

from hebe.embeddings.tiers.batch_lookup import LookupCounts


def test_every_count_is_added():
    count = len(fields(LookupCounts))
    total = LookupCounts(*range(count))
    total.add(LookupCounts(*range(10, 10 + count)))
    assert astuple(total) == tuple(range(10, 10 + 2 * count, 2))
