import asyncio

import numpy as np
import pytest

from hebe.load_generator.search.qps_search import Workload
from hebe.models.catalog import entry
from hebe.profiling.error import ProfilingError
from hebe.profiling.measurements.query_times import QueryTimes, mean_times, query_times, times_alone, times_under_load
from hebe.query import Query, QueryResult
from hebe.serving.requests.errors import QueryRefused
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes

SPEC = entry("dlrm-rmc1", "production", 1e-6)


def result(latency_s=1.0, queue_s=0.25, sparse_s=0.25, loading_s=0.125, dense_s=0.25):
    return QueryResult(0, np.zeros((1, 1), np.float32), latency_s, queue_s, sparse_s, dense_s, loading_s=loading_s)


class _Model:
    spec = SPEC


class _Driver:
    """Answers at once, or refuses."""

    model = _Model()

    def __init__(self, *, refuses=False):
        self.asked, self._refuses = [], refuses

    def new_query_id(self):
        return len(self.asked)

    async def infer(self, query):
        self.asked.append(query)
        await asyncio.sleep(0)
        if self._refuses:
            raise QueryRefused("overload", "no", 0.0)
        return result()


def test_what_is_no_work_is_queueing():
    times = query_times(result())
    assert times == QueryTimes(0.375, 0.25, 0.125, 0.25)
    assert times.latency_s == 1.0


def test_parts_side_by_side_count_as_shares_of_the_latency():
    times = query_times(result(latency_s=1.0, queue_s=0.5, sparse_s=1.0, loading_s=0.0, dense_s=1.0))
    assert times == QueryTimes(0.5, 0.25, 0.0, 0.25)
    assert query_times(result(0.0, 0.0, 0.0, 0.0, 0.0)) == QueryTimes(0.0, 0.0, 0.0, 0.0)


def test_means():
    mean = mean_times([QueryTimes(1.0, 2.0, 3.0, 4.0), QueryTimes(3.0, 2.0, 1.0, 0.0)])
    assert mean == QueryTimes(2.0, 2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="no query was answered"):
        mean_times([])


def test_queries_alone_may_take_their_time_and_the_first_is_left_out():
    driver = _Driver()
    assert times_alone(driver, [Query(0, 7, 0.0) for _ in range(3)]) == [query_times(result())] * 2
    assert [query.items for query in driver.asked] == [7, 7, 7]
    assert all(query.deadline_s - query.arrival_s == 60.0 for query in driver.asked)


def test_under_load_all_answers_after_the_warm_up_count():
    driver, load = _Driver(), Workload(FixedSizes(3))
    times = times_under_load(driver, load, 400.0, 0.2, SlaTarget(50.0))
    assert 0 < len(times) <= len(driver.asked)
    assert {query.items for query in driver.asked} == {3}
    feature = SPEC.features[0]
    assert driver.asked[0].features[feature.name].shape == (3, feature.lookups)


def test_a_load_of_which_nothing_is_answered_is_an_error():
    with pytest.raises(ProfilingError, match="none of the queries at 200 queries/s"):
        times_under_load(_Driver(refuses=True), Workload(FixedSizes(1)), 200.0, 0.1, SlaTarget(50.0))
