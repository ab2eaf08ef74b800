"""Options of `hebe profile` that fit each other, and those that would do nothing."""

from pathlib import Path

import pytest
import typer

from hebe.cli.profile.checks import (
    check_accelerator,
    check_arrivals,
    check_hot_rows,
    check_placements,
    chosen_keys,
    chosen_strategy,
    parse_batch_sizes,
    parse_placements,
)
from hebe.query import MOST_ITEMS
from hebe.server_configuration import Placement
from hebe.serving.hosting.model_host import HostOptions
from hebe.workload.forms import arrivals

MODEL, PIPELINE, SPARSE, HOT = Placement


def test_batches_are_as_large_as_a_server_takes_queries():
    assert HostOptions().max_items == MOST_ITEMS
    assert parse_batch_sizes("64, 16,64,8192", 999) == (16, 64, 8192)
    assert parse_batch_sizes("10000", 10_000) == (10_000,)
    assert parse_batch_sizes(None, 999) == ()
    with pytest.raises(typer.BadParameter, match="8193: must be at most 8192"):
        parse_batch_sizes("16,8193", 999)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("form", ["poisson", "constant", "burst:5:0.2:2"])
def test_arrivals_that_repeat_within_a_probe_are_measured(form, quick):
    check_arrivals(form, arrivals(form), quick=quick)


def test_arrivals_that_repeat_too_slowly_for_the_probes_are_wrong_usage():
    check_arrivals("burst:5:1:8", arrivals("burst:5:1:8"), quick=False)
    for form, quick, longest_s in (("burst", False, 8), ("burst:5:1:8", True, 2.8)):
        with pytest.raises(typer.BadParameter, match=rf"{form} repeats every .* lasts {longest_s:g} s at most"):
            check_arrivals(form, arrivals(form), quick=quick)


def test_placements_are_told_once_each():
    assert parse_placements(["pipeline-on-host", "model-on-host", "pipeline-on-host"]) == (PIPELINE, MODEL)


def test_the_default_strategy_is_by_what_may_run_where():
    assert chosen_strategy(None, ()) == chosen_strategy(None, (MODEL, PIPELINE)) == "guided"
    assert chosen_strategy(None, (MODEL, SPARSE)) == chosen_strategy(None, (HOT,)) == "hercules"
    assert chosen_strategy("random", (HOT,)) == "random"


@pytest.mark.parametrize(
    ("strategy", "placements", "idle"),
    [
        ("guided", tuple(Placement), None), ("hercules", (HOT, SPARSE), None), ("deeprecsys", (MODEL,), None),
        ("deeprecsys", (), None), ("deeprecsys", (MODEL, PIPELINE), PIPELINE), ("deeprecsys", (HOT,), HOT),
        ("baymax", (), None), ("baymax", (SPARSE, MODEL), None), ("baymax", (HOT,), None),
        ("baymax", (HOT, SPARSE), SPARSE), ("baymax", (HOT, PIPELINE), PIPELINE),
    ],
)  # fmt: skip
def test_a_placement_that_would_not_be_tried_is_wrong_usage(strategy, placements, idle):
    if idle is None:
        check_placements(strategy, placements)
        return
    with pytest.raises(typer.BadParameter, match=f"--strategy {strategy} would not try {idle}"):
        check_placements(strategy, placements)


def test_without_keys_that_are_asked_for_some_rows_are_hot_where_that_matters():
    assert chosen_keys(None, "guided", ()) == chosen_keys(None, "hercules", (SPARSE,)) == "uniform"
    assert chosen_keys(None, "hercules", (MODEL, HOT)) == chosen_keys(None, "baymax", ()) == "reuse"
    assert chosen_keys("uniform", "hercules", (HOT,)) == "uniform"


def test_an_accelerator_is_for_the_placements_that_run_on_it():
    check_accelerator("hercules", (SPARSE,), "cuda")
    check_accelerator("baymax", (), "cpu")
    check_accelerator("guided", (), None)
    with pytest.raises(typer.BadParameter, match="is for --placement sparse-on-host and hot-sparse-on-accelerator"):
        check_accelerator("guided", (MODEL,), "auto")
    with pytest.raises(typer.BadParameter, match="'tpu': choose auto, cpu, cuda"):
        check_accelerator("hercules", (SPARSE,), "tpu")


def test_hot_rows_are_for_the_placement_that_has_them():
    check_hot_rows("hercules", (HOT, MODEL), "5M", Path("keys"))
    check_hot_rows("baymax", (), "5M", None)
    check_hot_rows("guided", (), None, None)
    for strategy, placements in (("guided", ()), ("hercules", (SPARSE,)), ("baymax", (SPARSE,))):
        for memory, trace in (("5M", None), (None, Path("keys"))):
            with pytest.raises(typer.BadParameter, match="is for --placement hot-sparse-on-accelerator"):
                check_hot_rows(strategy, placements, memory, trace)
