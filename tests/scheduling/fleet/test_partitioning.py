from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.query import Query, SubQuery
from hebe.scheduling.events import (
    Availability,
    CompleteQuery,
    InstanceChanged,
    QueryArrived,
    RejectQuery,
    SendSubQuery,
    ShutdownBegan,
    SubQueryFinished,
)
from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.partitioning import PartitionedRouter, partitions_for
from hebe.scheduling.fleet.router import Router, RouterConfig

UP, DRAINING, LOST = Availability.UP, Availability.DRAINING, Availability.LOST


def partitioned(partitions: int) -> PartitionedRouter:
    return PartitionedRouter(partitions, lambda: Router(Fleet(["gpu", "cpu"]), FirstComeFirstServed()))


def of_type(router: Router, server_type: int) -> int:
    return sum(worker.server_type == server_type for worker in router.fleet.workers)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 6))
def test_partitions_differ_by_at_most_one_of_each_type_and_in_all(kinds: list[bool], partitions: int) -> None:
    router = partitioned(partitions)
    for instance_id, gpu in enumerate(sorted(kinds)):
        router.handle(InstanceChanged(instance_id, "gpu" if gpu else "cpu", UP), 0.0)
    for count in (lambda r: of_type(r, 0), lambda r: of_type(r, 1), lambda r: len(r.fleet.workers)):
        numbers = [count(part) for part in router.routers]
        assert max(numbers) - min(numbers) <= 1


def test_thousands_of_instances_have_the_same_mix_everywhere() -> None:
    router = partitioned(20)
    for instance_id in range(4000):
        router.handle(InstanceChanged(instance_id, "cpu" if instance_id % 4 else "gpu", UP), 0.0)
    assert {(of_type(part, 0), of_type(part, 1)) for part in router.routers} == {(50, 150)}


def test_queries_go_where_least_is_unanswered_and_then_in_turn() -> None:
    router = partitioned(3)
    for instance_id in range(3):
        router.handle(InstanceChanged(instance_id, "gpu", UP), 0.0)
    sent = [router.handle(QueryArrived(Query(at, 10, 0.0)), 0.0) for at in range(4)]
    assert [action.instance_id for (action,) in sent[:3] if isinstance(action, SendSubQuery)] == [0, 1, 2]
    assert sent[3] == []
    assert [part.unanswered for part in router.routers] == [2, 1, 1]
    (done,) = router.handle(SubQueryFinished(1, sent[1][0].sub_query, 0.01), 0.01)  # type: ignore[union-attr]
    assert isinstance(done, CompleteQuery)
    (action,) = router.handle(QueryArrived(Query(9, 10, 0.0)), 0.01)
    assert isinstance(action, SendSubQuery)
    assert action.instance_id == 1


def test_of_partitions_that_are_alike_each_has_its_turn() -> None:
    router = partitioned(3)
    for instance_id in range(3):
        router.handle(InstanceChanged(instance_id, "gpu", UP), 0.0)
    went_to = []
    for query_id in range(7):
        (sent,) = router.handle(QueryArrived(Query(query_id, 10, 0.0)), 0.0)
        assert isinstance(sent, SendSubQuery)
        went_to.append(sent.instance_id)
        router.handle(SubQueryFinished(sent.instance_id, sent.sub_query, 0.01), 0.0)
    assert went_to == [0, 1, 2, 0, 1, 2, 0]


def test_a_partition_of_more_workers_gets_more_queries() -> None:
    router = partitioned(2)
    router.handle(InstanceChanged(0, "gpu", UP, workers=3), 0.0)
    router.handle(InstanceChanged(1, "gpu", UP, workers=1), 0.0)
    for query_id in range(8):
        router.handle(QueryArrived(Query(query_id, 10, 0.0)), 0.0)
    assert [part.unanswered for part in router.routers] == [6, 2]


def test_an_instance_joins_the_partition_that_lacks_its_type_though_that_be_the_larger() -> None:
    router = partitioned(2)
    for instance_id in range(4):
        router.handle(InstanceChanged(instance_id, "cpu", UP), 0.0)
    for instance_id in (1, 3):
        router.handle(InstanceChanged(instance_id, "cpu", LOST), 0.0)
    for instance_id in (4, 5):
        router.handle(InstanceChanged(instance_id, "gpu", UP), 0.0)
    assert [(of_type(part, 0), of_type(part, 1)) for part in router.routers] == [(1, 2), (1, 0)]


def test_an_instance_takes_the_place_of_one_that_drains() -> None:
    router = partitioned(2)
    for instance_id in (0, 1):
        router.handle(InstanceChanged(instance_id, "gpu", UP), 0.0)
        router.handle(QueryArrived(Query(instance_id, 10, 0.0)), 0.0)
    router.handle(InstanceChanged(1, "gpu", DRAINING), 0.0)
    router.handle(InstanceChanged(2, "gpu", UP), 0.0)
    assert [[worker.instance_id for worker in part.fleet.workers] for part in router.routers] == [[0], [2]]


@given(st.lists(st.tuples(st.sampled_from("qqqqfffudl"), st.integers(0, 99)), max_size=80), st.integers(1, 4))
@settings(deadline=None)
def test_every_query_is_answered_once_whatever_happens_to_instances(
    events: list[tuple[str, int]], partitions: int
) -> None:
    router = partitioned(partitions)
    types: dict[int, str] = {}
    running: list[tuple[int, SubQuery]] = []
    answers: Counter[int] = Counter()
    queries = instances = 0

    def tell(event: object) -> None:
        for action in router.handle(event, 0.0):  # type: ignore[arg-type]
            if isinstance(action, SendSubQuery):
                assert action.instance_id in types
                running.append((action.instance_id, action.sub_query))
            else:
                answers[action.query.query_id] += 1

    for what, number in [("u", 0), ("u", 1), *events, ("u", 0)]:
        if what == "q":
            tell(QueryArrived(Query(queries, number + 1, 0.0)))
            queries += 1
        elif what == "f" and running:
            instance_id, part = running.pop(number % len(running))
            tell(SubQueryFinished(instance_id, part, 0.01))
        elif what == "u":
            types[instances] = ("gpu", "cpu")[number % 2]
            tell(InstanceChanged(instances, types[instances], UP))
            instances += 1
        elif what in "dl" and types:
            instance_id = sorted(types)[number % len(types)]
            state = DRAINING if what == "d" else LOST
            name = types.pop(instance_id) if what == "l" else types[instance_id]
            if what == "l":
                running[:] = [entry for entry in running if entry[0] != instance_id]
            tell(InstanceChanged(instance_id, name, state))
    while running:
        instance_id, part = running.pop(0)
        tell(SubQueryFinished(instance_id, part, 0.01))
    assert answers == Counter(range(queries))
    assert router.unanswered == 0


@pytest.mark.parametrize(
    ("counts", "partitions"),
    [((), 1), ((0, 0), 1), ((14,), 1), ((199, 0), 1), ((200, 0), 2), ((50, 950), 10), ((3, 997), 3), ((1000, 1), 1)],
)
def test_large_fleets_are_dealt_so_that_every_partition_has_all_types(counts: tuple[int, ...], partitions: int) -> None:
    assert partitions_for(counts) == partitions


def test_all_partitions_shut_down() -> None:
    router = partitioned(2)
    router.handle(InstanceChanged(0, "gpu", UP), 0.0)
    router.handle(InstanceChanged(1, "gpu", UP), 0.0)
    assert router.handle(ShutdownBegan(), 0.0) == []
    assert all(isinstance(router.handle(QueryArrived(Query(at, 1, 0.0)), 0.0)[0], RejectQuery) for at in range(4))


@pytest.mark.parametrize("shutting_down", [False, True])
def test_admitted_queries_that_lose_their_last_worker_are_never_refused_by_another_partition(
    shutting_down: bool,
) -> None:
    bounded = RouterConfig(max_queue=1)
    router = PartitionedRouter(2, lambda: Router(Fleet(["gpu"]), FirstComeFirstServed(), bounded))
    for instance_id in (0, 1):
        router.handle(InstanceChanged(instance_id, "gpu", UP), 0.0)
    running = []
    for query_id in range(4):  # in each partition one runs, one waits
        running += router.handle(QueryArrived(Query(query_id, 1, 0.0)), 0.0)
    if shutting_down:
        router.handle(ShutdownBegan(), 0.0)
    assert router.handle(InstanceChanged(0, "gpu", LOST), 0.0) == []
    part = next(send.sub_query for send in running if isinstance(send, SendSubQuery) and send.instance_id == 1)
    answered = []
    while router.unanswered:
        done, *sent = router.handle(SubQueryFinished(1, part, 0.01), 0.01)
        assert isinstance(done, CompleteQuery)
        answered.append(done.query.query_id)
        if sent:
            part = sent[0].sub_query  # type: ignore[union-attr]
    assert sorted(answered) == [0, 1, 2, 3]


def test_a_number_of_partitions_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="partitions is 0: must be at least 1"):
        partitioned(0)


def test_an_instance_that_is_not_there_is_a_fault_of_the_driver() -> None:
    with pytest.raises(ValueError, match="instance 5 is not there"):
        partitioned(2).handle(SubQueryFinished(5, SubQuery(Query(1, 1, 0.0), 0, 1), 0.1), 0.0)
