import re

import pytest

from hebe.capacity.errors import MisfitError
from hebe.capacity.progress import Progress, ignore
from hebe.capacity.run_length import LEAST_QUERIES, MOST_QUERIES, lasts_briefly, on_all_cores, queries_needed
from hebe.simulation.fleet.fleet_case import FleetCase, capacity_case
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.query_stream import QueryStream
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget

SLA = SlaTarget(20.0, 99.0)


def test_queries_are_enough_for_percentile_overload_and_periods():
    assert queries_needed(None, SLA, 10.0, "poisson", search=True) == LEAST_QUERIES
    assert queries_needed(None, SlaTarget(20.0, 99.99), 10.0, "poisson", search=True) == 100_000
    assert queries_needed(None, SlaTarget(1000.0, 99.0), 1000.0, "poisson", search=True) == 101_011
    assert queries_needed(None, SlaTarget(1000.0, 20.0), 1000.0, "poisson", search=True) == 500_000
    assert queries_needed(None, SLA, 1000.0, "burst:2:1:10", search=True) == 50_000
    assert queries_needed(150, SLA, 1000.0, "poisson", search=True) == 150
    assert queries_needed(None, SLA, 1e9, "poisson", search=False) == MOST_QUERIES
    with pytest.raises(MisfitError, match="need 101,010,102 queries a run, more than"):
        queries_needed(None, SlaTarget(1000.0, 99.0), 1e6, "poisson", search=True)
    with pytest.raises(MisfitError, match=r"queries is 99: must lie in 100\.\."):
        queries_needed(99, SLA, 1000.0, "poisson", search=False)
    with pytest.raises(MisfitError, match=r"must lie in 50,000\.\..* longer where percentile is low"):
        queries_needed(49_999, SlaTarget(1000.0, 10.0), 1000.0, "poisson", search=True)
    for search in (True, False):
        with pytest.raises(MisfitError, match=r"must lie in 10,000\.\..* a period of the arrivals"):
            queries_needed(9_999, SLA, 1000.0, "burst:2:1:10", search=search)
        with pytest.raises(MisfitError, match="need 50,000,000 queries a run, more than"):
            queries_needed(None, SLA, 1e6, "burst:2:1:10", search=search)


@pytest.mark.parametrize("percentile", [3.0, 20.0])
def test_a_search_ends_at_a_low_percentile_with_the_fewest_queries_that_are_let(percentile):
    """Were all there at once, a run of 1 / share SLAs would have that share of its queries in time."""
    sla, table = SlaTarget(10.0, percentile), ServiceTable.from_samples({"a": {1: [1e-3], 2: [1e-3]}})
    with pytest.raises(MisfitError) as caught:
        queries_needed(1, sla, 1000.0, "poisson", search=True)
    fewest = int(re.search(r"lie in ([\d,]+)\.\.", str(caught.value))[1].replace(",", ""))
    stream = QueryStream("poisson", "fixed:1", fewest, 0)
    found, _ = capacity_case(FleetCase(table, (1,), PolicyChoice(PolicyKind.FCFS), sla, 1, stream, 700.0))
    assert 1000 <= found <= 1400


def test_what_a_search_finds_is_hardly_more_than_servers_can_do():
    """One server, a millisecond a query, and a tenth of a second to wait in."""
    sla = SlaTarget(100.0, 99.0)
    table = ServiceTable.from_samples({"a": {1: [1e-3], 2: [1e-3]}})
    stream = QueryStream("constant", "fixed:1", queries_needed(None, sla, 1000.0, "constant", search=True), 0)
    found, _ = capacity_case(FleetCase(table, (1,), PolicyChoice(PolicyKind.FCFS), sla, 1, stream, 700.0))
    assert 990 <= found <= 1010


@pytest.mark.parametrize(
    ("queries", "words"),
    [(2_500, "lasts 25 times the SLA, .* about 4% too high at most: for 1% give queries 11000"), (5_051, "^$")],
)
def test_of_a_short_run_it_is_said_how_much_too_good_it_may_be(queries, words):
    assert re.search(words, "".join(lasts_briefly(queries, 1000.0, SlaTarget(100.0, 99.0))))


@pytest.mark.parametrize("queries", [10, 10**7])
def test_cases_are_answered_in_their_order_in_one_process_or_many(queries):
    steps = []
    assert on_all_cores("sizes", abs, [-3, 1, -2], queries, steps.append) == [3, 1, 2]
    assert steps == [Progress("sizes", done, 3, queries) for done in range(4)]


def test_the_first_error_of_a_case_is_raised():
    with pytest.raises(ValueError, match="invalid literal"):
        on_all_cores("numbers", int, ["1", "x"], 10**7, ignore)
