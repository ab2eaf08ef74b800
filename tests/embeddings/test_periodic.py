"""A thread that looks again and again, whatever comes of it."""

import logging

import pytest

from hebe.embeddings.periodic import Lookout
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.servers.redis_servers import wait_until

TIMEOUT_S = 60.0


@pytest.mark.parametrize(
    ("fault", "told"),
    [(StoreUnavailable("gone"), 0), (StoreError("refused"), 1), (ZeroDivisionError("by nothing"), 1), (None, 0)],
)
def test_it_goes_on_whatever_is_raised_and_says_it_once(caplog, fault, told):
    looks = 0

    def look():
        nonlocal looks
        looks += 1
        if fault is not None:
            raise fault

    lookout = Lookout("test", 0.001, look, "It fails")
    lookout.close()
    lookout = Lookout("test", 0.001, look, "It fails")
    with caplog.at_level(logging.WARNING, "hebe.tiers"):
        lookout.start()
        wait_until(lambda: looks > 3, TIMEOUT_S)
        lookout.close()
    ended = looks
    assert [record.message for record in caplog.records] == [f"It fails: {fault}"] * told
    assert ended == looks
    lookout.close()
