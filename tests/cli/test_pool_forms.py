"""The short forms of pools, server types and policies."""

import re

import pytest
import typer

from hebe.cli.pool_forms import choose_policy, parse_counts, parse_policy, parse_types
from hebe.simulation.policy_choice import PolicyKind

from ..simulation.pool_service import problem


def test_counts_keep_their_order_and_spaces_do_not_matter():
    assert list(parse_counts("gpu=1, cpu = 13,a=b=2", "--pool").items()) == [("gpu", 1), ("cpu", 13), ("a=b", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "'gpu': must be TYPE=COUNT, separated by commas"),
        ("gpu=1,", "'': must be TYPE=COUNT"),
        ("=1", "must be TYPE=COUNT"),
        ("gpu=-1", "'gpu=-1': must be TYPE=COUNT"),
        ("gpu=1.5", "must be TYPE=COUNT"),
        ("gpu=²", "must be TYPE=COUNT"),
        ("gpu=1,gpu=2", "server type gpu is given twice"),
        ("gpu=1000000000", "gpu=1000000000: at most 999,999,999"),
    ],
)
def test_what_are_no_counts_is_named(text, message):
    with pytest.raises(typer.BadParameter, match=re.escape(message)) as fault:
        parse_counts(text, "--pool")
    assert fault.value.param_hint == "--pool"


def test_types_are_names_each_once():
    assert parse_types("gpu, cpu", "--types") == ["gpu", "cpu"]
    with pytest.raises(typer.BadParameter, match="server type gpu is given twice"):
        parse_types("gpu,gpu", "--types")
    with pytest.raises(typer.BadParameter, match="'gpu,': must be names separated by commas"):
        parse_types("gpu,", "--types")


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
    with pytest.raises(typer.BadParameter, match=re.escape(message)) as fault:
        parse_policy(form)
    assert fault.value.param_hint == "--policy"
