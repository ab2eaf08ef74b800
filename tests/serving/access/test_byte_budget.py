from __future__ import annotations

import pytest

from hebe.serving.access.byte_budget import ByteBudget
from hebe.serving.requests.errors import ErrorKind, RequestError


def test_no_more_is_taken_than_there_is_and_what_is_given_back_can_be_taken_again():
    budget = ByteBudget(100)
    budget.take(60)
    budget.take(40)
    with pytest.raises(RequestError) as error:
        budget.take(1)
    assert (error.value.kind, error.value.reason) == (ErrorKind.OVERLOADED, "bytes_in_flight")
    assert "the requests under way take 100 of at most 100 bytes" in error.value.message
    assert error.value.retry_after_s > 0
    budget.give(40)
    budget.take(30)
    assert budget.held_bytes == 90
