"""Policies and pools as they are asked for."""

import re

import pytest

from hebe.capacity.errors import ArgumentError
from hebe.capacity.policies import check_counts, choose_policy, parse_policy
from hebe.simulation.fleet.policy_choice import PolicyKind
from tests.examples.pool_service import problem


def test_every_policy_has_a_form_and_a_threshold_may_have_items():
    assert [parse_policy(kind) for kind in PolicyKind] == [(kind, None) for kind in PolicyKind]
    assert parse_policy(" threshold:300 ") == (PolicyKind.THRESHOLD, 300)
    assert choose_policy("threshold:30", problem(), (1, 1)).threshold_items == 30
    assert choose_policy("splitting", problem(), (1, 1)).prices_qps


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("best", "'best': must be one of fcfs, threshold[:ITEMS], clockwork, matching, splitting"),
        ("fcfs:3", "'fcfs:3': must be one of fcfs"),
        ("", "must be one of fcfs"),
        ("threshold:", "'threshold:': must be threshold:ITEMS, a whole number"),
        ("threshold:x", "must be threshold:ITEMS"),
        ("threshold:-3", "must be threshold:ITEMS"),
        ("threshold:1234567890", "must be threshold:ITEMS"),
    ],
)
def test_what_is_no_policy_is_named(form, message):
    with pytest.raises(ArgumentError, match=re.escape(message)) as fault:
        parse_policy(form)
    assert fault.value.field == "policy"


@pytest.mark.parametrize("count", [-1, 1.5, True, "1"])
def test_what_is_no_count_is_named(count):
    with pytest.raises(ArgumentError, match="gpu is") as caught:
        check_counts("most", {"cpu": 0, "gpu": count})
    assert caught.value.field == "most"
