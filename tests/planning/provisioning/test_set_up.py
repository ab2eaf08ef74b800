import numpy as np
import pytest

from hebe.planning.provisioning.set_up import joining


def told(counts, late, interval, set_up_s):
    """Of one model, on one type of server, in intervals of 600 s."""
    found = joining(np.array(counts)[:, None], np.array(late)[:, None], interval, 600.0, set_up_s)
    return [(after_s, int(servers.sum())) for after_s, servers in found]


@pytest.mark.parametrize(
    ("set_up_s", "expected"),
    [
        (0.0, [[], [], [], []]),
        (30.0, [[], [(30, 2)], [], []]),
        (600.0, [[], [(600, 2)], [], []]),
        (900.0, [[], [(900, 2)], [(300, 2)], []]),
        (1800.0, [[], [(1800, 2)], [(1200, 2)], [(600, 2)]]),
    ],
)
def test_late_servers_are_late_until_they_are_set_up(set_up_s, expected):
    assert [told([1, 3, 3, 3], [0, 2, 0, 0], at, set_up_s) for at in range(4)] == expected


def test_those_of_several_intervals_join_one_after_the_other():
    assert told([1, 3, 6], [0, 2, 3], 2, 900.0) == [(300, 2), (900, 3)]


def test_no_more_are_late_than_there_are():
    """Of servers that are given up, those go first that have served; of late ones those that were started first."""
    assert told([1, 5, 3], [0, 4, 0], 2, 900.0) == [(300, 3)]
    assert told([1, 5, 4], [0, 4, 3], 2, 900.0) == [(300, 1), (900, 3)]
    assert told([1, 5, 0], [0, 4, 0], 2, 900.0) == []
