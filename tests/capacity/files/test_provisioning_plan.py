"""A plan of `hebe plan provision` as `hebe simulate` reads it back, whole and spoilt."""

import numpy as np
import pytest
import tomli_w

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.provisioning_plan import read_provisioning_plan


def plan(**changes):
    """Two models on two types over two intervals; the second one has late servers."""
    content = {
        "kind": "provisioning",
        "version": 1,
        "start": "2026-05-01",
        "interval_s": 600.0,
        "set_up_s": 30.0,
        "server": [{"server_type": "old", "available": 9}, {"server_type": "new", "available": 9}],
        "efficiency": [
            {"model": "a", "server_type": "old", "qps": 12.0, "power_watts": 9.0},
            {"model": "a", "server_type": "new", "qps": 12.0, "power_watts": 9.0},
            {"model": "b", "server_type": "old", "qps": 6.0, "power_watts": 9.0},
        ],
        "interval": [
            {
                "load_qps": {"a": 10.0, "b": 0.0},
                "capacity_qps": {"a": 12.0, "b": 0.0},
                "servers": {"a": {"old": 1}, "b": {}},
            },
            {
                "load_qps": {"a": 20.0, "b": 5.0},
                "capacity_qps": {"a": 24.0, "b": 6.0},
                "servers": {"a": {"new": 2}, "b": {"old": 1}},
                "late": {"a": {"new": 1}},
            },
        ],
    }
    return content | changes


def read(tmp_path, content):
    path = tmp_path / "day.toml"
    path.write_text(tomli_w.dumps(content))
    return read_provisioning_plan(path)


def test_servers_of_each_model_and_type_in_every_interval(tmp_path):
    found = read(tmp_path, plan())
    assert (found.models, found.server_types) == (("a", "b"), ("old", "new"))
    assert found.counts.tolist() == [[[1, 0], [0, 0]], [[0, 2], [1, 0]]]
    assert found.late.tolist() == [[[0, 0], [0, 0]], [[0, 1], [0, 0]]]
    assert found.load_qps.tolist() == [[10, 0], [20, 5]]
    assert found.capacity_qps.tolist() == [[12, 0], [24, 6]]
    assert found.edges_s.tolist() == [0, 600, 1200]
    assert [found.types_of(at) for at in range(2)] == [("old", "new"), ("old",)]
    assert found.made_from is None
    assert read(tmp_path, plan(made_from={"efficiency": "e.csv"})).made_from == tmp_path / "e.csv"


def test_models_without_load_and_servers_are_left_out(tmp_path):
    content = plan()
    content["interval"].pop()
    found = read(tmp_path, content).with_load()
    assert found.models == ("a",)
    assert found.counts.shape == found.late.shape == (1, 1, 2)
    np.testing.assert_array_equal(found.load_qps, [[10.0]])
    content["interval"][0]["load_qps"] = {"a": 0.0, "b": 0.0}
    with pytest.raises(PlanFileError, match="no model has a load in any interval"):
        read(tmp_path, content).with_load()


def test_the_capacity_is_that_of_the_servers_in_the_file(tmp_path):
    """One of four new servers is taken away, whatever the file says of the capacity."""
    content = plan()
    content["interval"][1] |= {"servers": {"a": {"new": 1, "old": 3}, "b": {"old": 2}}, "capacity_qps": {"a": 99.0}}
    content["interval"][1].pop("late")
    content["efficiency"][1]["qps"] = 100.0
    assert read(tmp_path, content).capacity_qps.tolist() == [[12, 0], [136, 12]]
    content["interval"][1]["servers"] = {}
    assert read(tmp_path, content).capacity_qps.tolist() == [[12, 0], [0, 0]]


def test_where_intervals_begin_may_be_left_out_or_said(tmp_path):
    content = plan(interval_s=0.1)
    content["interval"] = [{**content["interval"][0], "start_s": at * 0.1} for at in range(30)]
    assert len(read(tmp_path, content).counts) == 30


def changed(number, field, value):
    content = plan()
    if value is None:
        del content["interval"][number][field]
    else:
        content["interval"][number][field] = value
    return content


SPOILT = {
    "kind": (plan(kind="pool"), "kind 'pool', version 1: must be kind 'provisioning', version 1, as hebe plan pro"),
    "version": (plan(version=2), "version 2: must be kind 'provisioning'"),
    "interval_s": (plan(interval_s=0.0), "interval_s is 0: must be more than 0 s"),
    "interval_s of text": (plan(interval_s="x"), "interval_s is 'x': must be a number"),
    "set_up_s": (plan(set_up_s=-1.0), "set_up_s is -1.0: must be a finite number of at least 0"),
    "server": (plan(server=[]), "[[server]] is missing"),
    "server_type": (plan(server=[{"available": 3}]), "server 1: server_type is missing"),
    "interval": (plan(interval=[]), "[[interval]] is missing"),
    "interval of text": (plan(interval=["x"]), "[[interval]] is missing"),
    "made_from": (plan(made_from="x"), "made_from is 'x': must be a table of files"),
    "no load": (changed(1, "load_qps", None), "interval 2: load_qps is None: must be a table by model"),
    "empty load": (changed(0, "load_qps", {}), "interval 1: load_qps is empty"),
    "load of a model": (changed(1, "load_qps", {"a": 1.0}), "interval 2: load_qps: b is missing"),
    "unknown model": (changed(1, "servers", {"c": {}}), "interval 2: servers: unknown model 'c': known are a, b"),
    "load that is none": (
        changed(1, "load_qps", {"a": float("nan"), "b": 1.0}),
        "interval 2: load_qps: a is nan: must be a finite number",
    ),
    "unknown field": (plan(intervals=[]), "day.toml: unknown field 'intervals': known are kind, version, written_by"),
    "unknown field of an interval": (changed(1, "loads", {}), "interval 2: unknown field 'loads': known are start_s, "),
    "unknown field of a server": (
        plan(server=[{"server_type": "old", "available": 9, "count": 1}]),
        "server 1: unknown field 'count': known are server_type, available, price_per_hour",
    ),
    "server twice": (plan(server=[{"server_type": "old", "available": 9}] * 2), "server 2: server_type old is given t"),
    "available": (plan(server=[{"server_type": "old"}]), "server 1: available is missing"),
    "too many servers": (
        changed(1, "servers", {"a": {"old": 8, "new": 1}, "b": {"old": 2}}),
        "interval 2: servers: 10 of old, of all models together: available are 9, says server 1",
    ),
    "no efficiency": (plan(efficiency=[]), "[[efficiency]] is missing"),
    "efficiency of a server": (
        plan(efficiency=[plan()["efficiency"][0]]),
        "efficiency of a on new is missing: the plan has such servers",
    ),
    "efficiency twice": (plan(efficiency=plan()["efficiency"] * 2), "efficiency 4: a on old is given twice"),
    "an interval elsewhere": (changed(1, "start_s", 700.0), "interval 2: start_s is 700: must be 600, as long as t"),
    "a first interval elsewhere": (changed(0, "start_s", 1.0), "interval 1: start_s is 1: must be 0"),
    "no servers": (changed(0, "servers", None), "interval 1: servers is None"),
    "unknown type": (
        changed(0, "servers", {"a": {"tpu": 1}}),
        "servers: a: unknown server type 'tpu': known are old, ",
    ),
    "count": (changed(0, "servers", {"a": {"old": 1.5}}), "interval 1: servers: a: old is 1.5: must be a whole number"),
    "servers of text": (changed(0, "servers", {"a": "x"}), "interval 1: servers: a is 'x': must be a table"),
    "more late than servers": (
        changed(0, "late", {"a": {"old": 2}}),
        "interval 1: late: a on old is 2: at most its servers, 1",
    ),
}


@pytest.mark.parametrize(("content", "message"), SPOILT.values(), ids=SPOILT)
def test_what_is_wrong_is_named(tmp_path, content, message):
    with pytest.raises(PlanFileError) as fault:
        read(tmp_path, content)
    assert message in str(fault.value)
    assert str(fault.value).startswith(str(tmp_path / "day.toml"))
