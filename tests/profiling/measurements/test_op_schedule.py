from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.op_graph import Op, OpGraph, OpGraphError
from hebe.profiling.measurements.op_schedule import OpSpan, idle_share, schedule_ops


def graph_of(**reads):
    """Ops by name, each with the names that it reads."""
    ops = tuple(Op(name, "x", tuple({"op": other} for other in read)) for name, read in reads.items())
    return OpGraph((), ops, ops[-1].name)


FIGURE_5 = graph_of(sparse=(), bottom_1=(), bottom_2=("bottom_1",), predict=("sparse", "bottom_2"))
SECONDS = {"sparse": 4.0, "bottom_1": 1.0, "bottom_2": 2.0, "predict": 1.0}


def test_one_worker_runs_one_op_after_another():
    schedule = schedule_ops(FIGURE_5, SECONDS, 1)
    assert schedule.length_s == schedule.busy_s == 8.0
    assert schedule.idle_share == 0.0
    assert [span.op for span in schedule.spans] == ["sparse", "bottom_1", "bottom_2", "predict"]


def test_predict_waits_for_both_and_leaves_a_worker_idle():
    """Hercules Figure 5(b)."""
    schedule = schedule_ops(FIGURE_5, SECONDS, 2)
    assert schedule.spans == (
        OpSpan("sparse", 0, 0.0, 4.0),
        OpSpan("bottom_1", 1, 0.0, 1.0),
        OpSpan("bottom_2", 1, 1.0, 3.0),
        OpSpan("predict", 0, 4.0, 5.0),
    )
    assert schedule.idle_share == pytest.approx(1 - 8 / 10)
    assert idle_share(FIGURE_5, SECONDS, 4) == pytest.approx(1 - 8 / 20)


def test_the_op_with_the_longest_way_to_the_end_comes_first():
    graph = graph_of(short=(), head=(), tail=("head",), end=("short", "tail"))
    seconds = {"short": 3.0, "head": 1.0, "tail": 4.0, "end": 1.0}
    schedule = schedule_ops(graph, seconds, 1)
    assert [span.op for span in schedule.spans] == ["head", "tail", "short", "end"]
    equal = graph_of(a=(), b=(), c=("a", "b"))
    assert [span.op for span in schedule_ops(equal, {"a": 1.0, "b": 1.0, "c": 0.0}, 1).spans] == ["a", "b", "c"]


def test_ops_that_take_no_time_idle_nobody():
    assert idle_share(FIGURE_5, dict.fromkeys(SECONDS, 0.0), 3) == 0.0


@pytest.mark.parametrize("wrong", [None, -1.0, float("nan"), float("inf")])
def test_an_op_needs_a_time(wrong):
    seconds = {name: taken for name, taken in SECONDS.items() if name != "bottom_2"}
    if wrong is not None:
        seconds["bottom_2"] = wrong
    with pytest.raises(OpGraphError, match=f"op bottom_2: its time is {wrong}"):
        idle_share(FIGURE_5, seconds, 2)


def test_there_must_be_a_worker():
    with pytest.raises(ValueError, match="workers is 0: must be at least 1"):
        idle_share(FIGURE_5, SECONDS, 0)


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 12))
    reads = {f"op{i}": draw(st.sets(st.sampled_from([f"op{j}" for j in range(i)]))) if i else () for i in range(count)}
    seconds = {name: draw(st.integers(0, 8)) / 4 for name in reads}
    return graph_of(**reads), seconds


@given(graphs(), st.integers(1, 5))
def test_any_schedule_is_one_that_workers_could_run(made, workers):
    graph, seconds = made
    schedule = schedule_ops(graph, seconds, workers)
    at = {span.op: span for span in schedule.spans}
    assert len(schedule.spans) == len(at) == len(graph.ops)
    assert schedule.length_s == max(span.stop_s for span in schedule.spans)
    way_s: dict[str, float] = {}
    for op in graph.ops:
        span = at[op.name]
        assert 0 <= span.worker < workers
        assert span.stop_s - span.start_s == seconds[op.name]
        assert all(at[other].stop_s <= span.start_s for other in op.inputs())
        way_s[op.name] = seconds[op.name] + max((way_s[other] for other in op.inputs()), default=0.0)
    for worker in range(workers):
        own = [span for span in schedule.spans if span.worker == worker]
        assert all(before.stop_s <= after.start_s for before, after in itertools.pairwise(own))
    # Graham 1969: a list schedule is at least as long as the longest way and as the work shared out, at most their sum.
    work_s, longest_s = sum(seconds.values()), max(way_s.values())
    assert max(longest_s, work_s / workers) <= schedule.length_s <= longest_s + (work_s - longest_s) / workers
    assert 0.0 <= schedule.idle_share < 1.0
    assert workers > 1 or schedule.idle_share == 0.0
