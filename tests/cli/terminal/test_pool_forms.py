"""The short forms of pools and server types."""

import re

import pytest
import typer

from hebe.cli.terminal.pool_forms import parse_counts, parse_types


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
