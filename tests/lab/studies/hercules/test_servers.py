"""hercules-servers: what it tells of made-up tuples.

What single servers' gains hang on: which pairs are tried, and how they are told.
"""

from dataclasses import fields, replace

import pytest
from rich.progress import Progress

from hebe.models import catalog
from hebe.simulation.analytic.calibration import CAFFE2
from hebe.simulation.analytic.server_types import HERCULES
from hebe_lab.studies.hercules import servers as hercules_servers
from hebe_lab.studies.hercules.fleet import EARLY, model_of
from hebe_lab.studies.hercules.servers import gain_causes, gain_causes_table, why_first_cpu, why_gains_differ
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import assert_well_told

from .hercules_tuples import PAIRS, made_up, made_up_changes


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hercules_servers, "all_pairs", made_up)
        patch.setattr(hercules_servers, "changed_pairs", made_up_changes)
        return hercules_servers.run(StudyOptions(quick=True), Progress(disable=True))


def test_the_page_has_all_gains_but_those_that_are_none(result):
    figures = {figure.name: figure for figure in result.figures}
    assert figures["hercules.schedule_gain.rmc1.t2"].value == pytest.approx(2.0)
    assert figures["hercules.schedule_gain.rmc1.t2"].paper == 1.82
    assert_well_told(hercules_servers, result, figures_of_the_paper=6)


def test_configurations_are_spelled_out(result):
    tuples = next(table for table in result.tables if "all pairs" in table.title)
    assert tuples.rows[0][-1] == "sparse-on-host 2 x 3 d 64 k 4 f 512; beside it model-on-host 5 x 1 d 128"


def test_statements_are_judged_by_the_tuples():
    statements = {text: holds for _, text, holds in hercules_servers._statements(PAIRS)}
    assert statements["RMC1: T2 has more throughput than T1"]
    assert statements["DIN: near memory gains no throughput"]
    assert statements["MT-WnD: T7 has more throughput and energy efficiency than T2"]
    worse = {**PAIRS, ("RMC1", "T2"): replace(PAIRS["RMC1", "T1"])}
    judged = {text: holds for _, text, holds in hercules_servers._statements(worse)}
    assert not judged["RMC1: T2 has more throughput than T1"]


def test_a_model_that_a_server_cannot_serve_in_time_has_no_configuration():
    out = replace(PAIRS["DIN", "T1"].best, qps=0.0, configuration={})
    table = hercules_servers._pairs_table({**PAIRS, ("DIN", "T1"): replace(PAIRS["DIN", "T1"], best=out)})
    assert [row[-1] for row in table.rows if row[:2] == ["DIN", "T1"]] == ["out of reach"]


@pytest.fixture
def asked(monkeypatch):
    """The pairs that are searched."""
    pairs = []

    def searched(cases, quick, progress):
        pairs.extend(cases)
        return made_up_changes(cases, quick, progress)

    monkeypatch.setattr(hercules_servers, "changed_pairs", searched)
    return pairs


def test_one_assumption_is_changed_at_a_time(asked):
    tried = gain_causes(True, Progress(disable=True))
    assert len(tried) == len(asked)
    for (what, name, kind), case in zip(tried, asked, strict=True):
        server, usual = case.server, HERCULES[kind]
        changed = {
            "server": sum(getattr(server, each.name) != getattr(usual, each.name) for each in fields(server)),
            "model": int(case.model != model_of(name)),
            "calibration": sum(
                getattr(case.calibration, each.name) != getattr(CAFFE2, each.name) for each in fields(CAFFE2)
            ),
        }
        if what.startswith("ops and launches"):
            assert changed == {"server": 1, "model": 0, "calibration": 1}, "both stand for launches"
            assert server.accelerator.launch_overhead_s == case.calibration.op_overhead_s == 0
        else:
            assert sum(changed.values()) == 1, what
    assert {name for what, name, kind in tried if kind == "T3"} == set(EARLY)
    small = [case.model for (what, _, _), case in zip(tried, asked, strict=True) if what == "small variant"]
    assert small == [catalog.entry(name, "small") for name in ("dlrm-rmc3", "din")]


@pytest.mark.usefixtures("asked")
def test_gains_stand_beside_those_before_and_are_left_out_where_there_are_none():
    tried = gain_causes(True, Progress(disable=True))
    rows = {tuple(row[:3]): row[3:] for row in gain_causes_table(PAIRS, tried).rows}
    assert len(rows) == len(tried)
    before, now = PAIRS["RMC2", "T1"], tried["twice the SLA target", "RMC2", "T1"]
    assert rows["RMC2", "T1", "twice the SLA target"] == [before.best.qps, now.best.qps, None, None]


@pytest.mark.usefixtures("asked")
def test_words_follow_what_was_tried():
    tried = dict(gain_causes(True, Progress(disable=True)))
    twice = tried["twice the near-memory ranks", "RMC1", "T3"]
    tried["twice the near-memory ranks", "RMC1", "T3"] = replace(
        twice, best=replace(twice.best, qps=1.75 * PAIRS["RMC1", "T3"].best.qps)
    )
    words = why_gains_differ(PAIRS, tried, {"RMC3": 2.9, "DIN": 3.4})
    assert "twice as many do 1.75 times" in words
    assert "these gain 2.9 and 3.4 times" in words
    patient = tried["twice the SLA target", "RMC2", "T1"], tried["twice the SLA target", "RMC2", "T2"]
    assert f"{patient[0].efficiency / patient[1].efficiency:.2f} times with twice" in why_first_cpu(PAIRS, tried)


def test_a_server_without_an_accelerator_launches_nothing():
    with pytest.raises(ValueError, match="T2 has no accelerator"):
        hercules_servers._without_launches(HERCULES["T2"])
