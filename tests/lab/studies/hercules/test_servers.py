"""hercules-servers: what it tells of made-up tuples."""

from dataclasses import replace

import pytest
from rich.progress import Progress
from tests.lab.studies.study_page import assert_well_told

from hebe_lab.studies.hercules import servers as hercules_gains
from hebe_lab.studies.hercules import servers as hercules_servers
from hebe_lab.study import StudyOptions

from .hercules_tuples import PAIRS, made_up, made_up_changes


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hercules_servers, "all_pairs", made_up)
        patch.setattr(hercules_gains, "changed_pairs", made_up_changes)
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
