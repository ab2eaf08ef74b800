"""What the benchmark of splitting a server anew tries, and what it calls recovered."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from hebe.query import Query
from hebe.scheduling.events import RejectReason
from hebe.server_configuration import Placement
from hebe.serving.requests.errors import QueryFailed, QueryRefused
from hebe.spec import SlaTarget
from hebe_lab.bench.serving.reconfigure import _load, _Queries, _recovery_figure, _recovery_s, _seconds, configurations


@pytest.mark.parametrize("cores", [1, 2, 3, 16])
def test_every_placement_is_tried_that_the_cores_allow(cores):
    ways = configurations(cores)
    assert ways[0] == ways[-1]
    assert all(1 <= sum(lane.cores for lane in way) <= cores for way in ways)
    assert {way[0].placement for way in ways} == (set(Placement) if cores > 1 else {Placement.MODEL_ON_HOST})


async def test_only_a_query_that_met_a_full_queue_is_refused_and_all_others_without_an_answer_are_lost():
    """Above all those that were admitted and found no worker any more, the server being split anew."""
    outcomes = [None, QueryFailed("its batch failed"), *(QueryRefused(reason, "no") for reason in RejectReason)]
    numbers, met = itertools.count(), []

    async def infer(query):
        met.append(outcomes[query.query_id % len(outcomes)])
        if met[-1] is not None:
            raise met[-1]
        return SimpleNamespace(latency_s=0.001)

    model = SimpleNamespace(random_query=lambda items, seed: Query(seed, "ranker", items, 0.0))
    driver = SimpleNamespace(model=model, new_query_id=lambda: next(numbers), infer=infer)
    ways, made = configurations(1)[1:], []
    evaluator = SimpleNamespace(driver=driver, configure=made.append)
    queries, changes = await _load(evaluator, 1000.0, ways, 0.03, lambda: None)
    assert (made, len(changes)) == (ways, len(ways))
    assert len(met) == len(queries.latencies_s) > 2 * len(outcomes)
    full = sum(isinstance(each, QueryRefused) and each.reason == "queue_full" for each in met)
    assert (queries.refused, queries.lost) == (full, len(met) - met.count(None) - full)
    assert queries.latencies_s.count(math.inf) == len(met) - met.count(None)


def recovery_s(queries, began_s, took_s):
    return _recovery_s(_seconds(queries, began_s, 4.0), took_s)


def test_recovered_is_when_the_change_is_made_and_the_sla_has_begun_to_hold_for_two_seconds():
    queries = _Queries()
    for number in range(900):
        arrival_s = number / 100
        queries.arrivals_s.append(arrival_s)
        queries.latencies_s.append(0.2 if 2.0 <= arrival_s < 2.3 else 0.01)
    assert recovery_s(queries, 1.8, 0.1) == pytest.approx(1.0)
    assert recovery_s(queries, 1.8, 1.7) == pytest.approx(1.7)
    assert recovery_s(queries, 2.6, 0.1) == pytest.approx(0.1)
    queries.latencies_s[300] = float("inf")
    assert recovery_s(queries, 2.6, 0.1) == pytest.approx(0.1), "one in twenty may be late"
    queries.latencies_s[500:530] = [0.2] * 30
    assert recovery_s(queries, 2.6, 0.1) == pytest.approx(0.1), "what slows it later is something else"
    assert recovery_s(queries, 4.8, 0.1) == pytest.approx(1.0)
    queries.latencies_s = [0.2] * 900
    assert recovery_s(queries, 2.6, 0.1) is None


def test_changes_that_never_recovered_are_counted():
    ways = configurations(1)[1:]
    recoveries_s = [0.1, 0.2] * 3
    assert len(recoveries_s) == 3 * len(ways)
    recoveries_s[3] = None
    figure = _recovery_figure(recoveries_s, ways, 6.0, SlaTarget(20.0, 95.0), "And so on")
    assert (figure.value, figure.low, figure.high, figure.runs) == (0.2, 0.1, 6.0, 6)
    assert "the median of 3 rounds" in figure.note
    assert figure.note.endswith(
        "1 of 6 changes had not recovered when the next was made, 6 s later, and count as that. And so on"
    )
