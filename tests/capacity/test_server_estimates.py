"""What is estimated, and which files are written of it."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hebe.capacity.errors import ArgumentError, PlanFileError
from hebe.capacity.files.entries import read_efficiency
from hebe.capacity.files.server_specs import BUILT_IN, TEMPLATE
from hebe.capacity.files.service_times import read_service_times
from hebe.capacity.server_estimates import estimate, write_estimates
from hebe.models import catalog

NCF, WND = "kairos-ncf", "kairos-wnd"
ASKED = {"sla_ms": 60.0, "percentile": 95.0, "sizes": "quantiles:10,50,200", "strategy": "deeprecsys"}


def estimated(models=(NCF,), servers=("r5n.large",), **changes):
    return estimate([catalog.entry(name) for name in models], servers, **ASKED | changes)


def test_every_model_is_estimated_on_every_type_models_first():
    made = estimated(models=(NCF, WND, NCF), servers=("r5n.large", "c5n.2xlarge", "r5n.large"))
    pairs = [(one.efficiency.model, one.efficiency.server_type) for one in made]
    assert pairs == [(name, kind) for name in (NCF, WND) for kind in ("r5n.large", "c5n.2xlarge")]
    assert all(one.efficiency.estimated and one.efficiency.qps > 0 for one in made)


def test_the_target_is_the_model_s_own_where_none_is_asked_for():
    own = estimated(sla_ms=None, percentile=None)[0].case.sla
    assert estimated(sla_ms=None)[0].case.sla == replace(own, percentile=95.0)
    assert estimated(percentile=None)[0].case.sla == replace(own, latency_ms=60.0)


def test_what_is_written_is_what_planning_reads(tmp_path):
    made = estimated(models=(NCF, WND))
    files = write_estimates(made, tmp_path)
    assert {path.name for path in files} == {path.name for path in tmp_path.iterdir()}
    assert read_efficiency(tmp_path / "efficiency.toml", {}) == [one.efficiency for one in made]
    times = read_service_times([tmp_path / "service_times.toml"], WND)
    assert times.workers_per_server == (made[1].estimate.times.workers,)
    assert all("not measured" in path.read_text().splitlines()[0] for path in files)
    (server,) = tomllib.loads((tmp_path / "server-r5n.large.toml").read_text())["server"]
    assert server["cores"] == made[0].case.server.cores


def test_what_is_not_estimated_any_more_does_not_stay_beside_other_tuples(tmp_path):
    write_estimates(estimated(), tmp_path)
    assert (tmp_path / "service_times.toml").is_file()
    out_of_reach = estimated(sla_ms=0.001)
    assert out_of_reach[0].efficiency.qps == 0
    write_estimates(out_of_reach, tmp_path)
    assert not (tmp_path / "service_times.toml").exists()
    assert [one.qps for one in read_efficiency(tmp_path / "efficiency.toml", {})] == [0.0]


def test_faults_are_told_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("hebe.capacity.server_estimates.sweep", lambda *_, **__: pytest.fail("it was computed"))
    (tmp_path / "mine.toml").write_text(TEMPLATE.replace("my-server", "T2"))
    with pytest.raises(PlanFileError, match="server type T2 is given twice, before as T2"):
        estimated(servers=("T2", str(tmp_path / "mine.toml")))
    with pytest.raises(PlanFileError, match="'T22' is not built in"):
        estimated(servers=("T22",))
    for field, wrong in (
        ("keys", "zipf:1"), ("sizes", "x"), ("strategy", "x"), ("sla_ms", 0), ("percentile", 0), ("cache_ways", 0),
        ("models", ()), ("servers", ()),
    ):  # fmt: skip
        with pytest.raises(ArgumentError) as caught:
            estimated(**{field: wrong})
        assert caught.value.field == field


def test_one_model_and_one_server_need_no_list():
    (one,) = estimate(catalog.entry(NCF), BUILT_IN["r5n.large"], **ASKED)
    assert one.efficiency == estimated()[0].efficiency


def test_where_nothing_can_be_written_the_system_says_why():
    with pytest.raises(FileNotFoundError):
        write_estimates(estimated(), Path("/proc/none/out"))
