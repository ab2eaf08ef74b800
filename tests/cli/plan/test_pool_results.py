"""What is shown and written of a pool's plan: of figures that were made up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hebe.capacity import plan_pool
from hebe.cli.plan.pool_results import document, plan_file, predicted
from hebe.report.html import page as page_of
from hebe.simulation.fleet.capacity import Capacity
from hebe.simulation.fleet.fleet_case import MeasuredCapacity
from tests.cli.shown import shown
from tests.examples.pool_files import prices_file, times_file


@pytest.fixture(scope="module")
def unsimulated(tmp_path_factory):
    """A plan by bounds alone."""
    folder = tmp_path_factory.mktemp("pool")
    return plan_pool(
        times_file(folder), prices_file(folder), 1.2, 12.0, percentile=95.0, sizes="quantiles:5,10,20,40,100",
        ranked=3, simulate=False, queries=300, seeds=2,
    )  # fmt: skip


@pytest.fixture
def made(unsimulated):
    """The same as if it had been simulated: the chosen pool at 500 queries/s, others at half of that."""
    proposals = {
        name: replace(one, measured=MeasuredCapacity(Capacity.of(qps), ()))
        for name, one in unsimulated.proposals.items()
        for qps in ([490.0, 510.0] if name == "chosen" else [245.0, 255.0],)
    }
    return replace(unsimulated, proposals=proposals, unpriced=("tpu",))


def test_figures_that_were_not_simulated_are_absent(unsimulated, made):
    chosen = unsimulated.chosen
    assert predicted(unsimulated, chosen) == {
        "price_per_hour": chosen.cost_per_hour, "bound_qps": chosen.bound.bound_qps,
    }  # fmt: skip
    figures = predicted(made, made.chosen)
    assert (figures["qps"], figures["seeds"], figures["queries_per_run"]) == (500.0, 2, made.queries)
    assert figures["qps_low"] < 490 < 510 < figures["qps_high"]


def test_an_interval_of_two_unlike_runs_does_not_go_below_0(made):
    unlike = replace(made.chosen, measured=MeasuredCapacity(Capacity.of([400.0, 600.0]), ()))
    assert predicted(made, unlike)["qps_low"] == 0.0
    text = shown(document(replace(made, proposals=made.proposals | {"chosen": unlike})))
    assert "serves 500 (0 to 1,771) queries/s" in text


def test_the_plan_file_has_the_chosen_pool_and_the_proposals_beside_it(made):
    content = plan_file(made).to_dict(Path("pool.toml"))
    counts = {server["server_type"]: server["count"] for server in content["server"]}
    assert tuple(counts.values()) == made.chosen.counts
    assert content["policy"] == made.chosen.policy.to_dict() | {"partitions": 1}
    assert content["predicted"]["qps"] == 500.0
    assert [one["name"] for one in content["proposal"]] == [name for name in made.proposals if name != "chosen"]


def test_json_is_plain_and_whole(made):
    figures = json.loads(json.dumps(document(made).data))
    assert figures["types"] == ["gpu", "cpu", "small"]
    assert figures["base_type"] == "gpu"
    assert len(figures["ranked"]) == 3
    assert figures["proposals"]["Kairos"]["qps"] == 250.0
    assert set(figures["proposals"]["chosen"]["counts"].values()) - {0} == set(
        figures["proposals"]["chosen"]["counts"].values()
    )


def test_the_terminal_tells_ranking_proposals_and_what_is_chosen(made):
    text = shown(document(made))
    assert "1 *" in text
    assert "Kairos' pick, its matching" in text
    assert f"with {made.chosen.policy.kind} for {made.chosen.cost_per_hour:g} per hour serves 500 (" in text
    assert "p95 within 12 ms." in text
    assert f"* Kairos' pick, of {made.kairos.pools:,} pools within the budget." in text
    assert "Measured but not priced, so not on offer: tpu." in text
    assert f"Simulated: 2 runs of {made.queries:,} queries each" in text


def test_without_a_ranking_or_a_simulation_that_is_said(unsimulated):
    text = shown(document(replace(unsimulated, kairos=None, without_kairos="Only splitting does.")))
    assert "rank" not in text
    assert "Only splitting does." in text
    assert "not simulated; fluid bound" in text
    assert "Simulated:" not in text


def test_the_page_draws_frontier_and_shares_and_compares_the_chosen_pool(unsimulated, made):
    page = page_of(document(made))
    assert page.count("<svg") == 2
    for words in ("What a budget buys", "Who serves what", "over the best type alone", "2.00"):
        assert words in page
    assert "whole or, where the policy splits, in up to 4 parts: equal ones on one server type" in page
    assert "not simulated" in page_of(document(unsimulated))


def test_the_page_says_where_the_frontier_is_known_at_marks_only(unsimulated):
    marks = "known at the marks only, which straight lines join"
    assert f"fluid bound, splitting and fluid bound, whole queries: {marks}" in page_of(document(unsimulated))
    assert marks not in page_of(document(replace(unsimulated, sampled=frozenset())))
