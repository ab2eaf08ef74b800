import numpy as np

from hebe.kernels.hash_tables import hash_map_partition as layout

from .array_map import ArrayMap


def test_the_fewest_slots_leave_some_empty():
    """A search ends at an empty slot."""
    for bits in range(layout.FEWEST_BITS, 40):
        assert 0 < layout.most_keys(bits) < 1 << bits
        assert layout.most_keys(bits + 1) == 2 * layout.most_keys(bits)


def test_rows_stay_where_they_are_and_those_given_back_are_taken_first():
    ours = ArrayMap()
    ours.insert(range(20), np.zeros((20, 2), np.float32))
    before = {int(key): int(place) for key, place in ours.slots[0].reshape(-1, 2) if place}
    assert sorted(before.values()) == list(range(1, 21))
    ours.call("delete", [3, 11])
    ours.insert(range(100, 140), np.zeros((40, 2), np.float32))  # takes more slots
    after = {int(key): int(place) for key, place in ours.slots[0].reshape(-1, 2) if place}
    assert {key: after[key] for key in before if key in after} == {
        key: place for key, place in before.items() if key not in (3, 11)
    }
    assert {after[100], after[101]} == {before[3], before[11]}
    assert ours.fields[0, layout.USED] == 58


def test_deletes_leave_no_trace_in_the_slots():
    ours = ArrayMap()
    rng = np.random.default_rng(1)
    rows = np.zeros((96, 2), np.float32)
    ours.insert(range(96), rows)
    present = set(range(96))
    longest = 0
    for _ in range(200):
        gone = rng.choice(sorted(present), 24, replace=False)
        assert ours.call("delete", gone) == 24
        longest = max(longest, ours.longest_probe())
        come = rng.integers(0, 2**40, 24)
        ours.insert(come, rows[:24])
        present = present - set(gone.tolist()) | set(come.tolist())
        longest = max(longest, ours.longest_probe())
        assert ours.keys() == sorted(present)
    assert len(ours.slots[0]) == 2 * 128
    assert ours.fields[0, layout.USED] == 96
    assert longest < 64
