"""A name that others may change: who follows it is told, or has not followed."""

import pytest

from hebe.embeddings.redis.identity import FollowedName


def test_who_follows_is_told_of_another_name():
    name, told = FollowedName(), []
    name.follow("a")
    assert name.current == "a", "nobody need listen"
    name.changed = lambda: told.append(name.current)
    name.follow("b")
    assert (name.current, told) == ("b", ["b"])


def test_a_name_that_could_not_be_followed_counts_as_not_told():
    name = FollowedName()
    name.follow("a")

    def fail():
        raise OSError("the log is gone")

    name.changed = fail
    with pytest.raises(OSError, match="gone"):
        name.follow("b")
    assert name.current is None
    name.changed = None
    name.follow("b")
    assert name.current == "b"
