"""hera-sensitivity: what it tells of co-runs that are as predicted."""

import pytest
from rich.progress import Progress

from hebe_lab.studies.hera import sensitivity as hera_sensitivity
from hebe_lab.studies.hera.node import HeraNode, Measured
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import assert_well_told

from .hera_co_runs import as_predicted


def test_configurations_and_partitions_are_compared_by_the_emu_of_their_pairs(monkeypatch):
    monkeypatch.setattr(hera_sensitivity, "NODES", hera_sensitivity.NODES[:2])

    def without_partitions_half(title, cases, progress):
        answers = as_predicted(title, cases, progress)
        return [
            answer if case.partitioned else Measured(tuple(qps / 2 for qps in answer.together_qps), answer.alone_qps)
            for case, answer in zip(cases, answers, strict=True)
        ]

    monkeypatch.setattr(hera_sensitivity, "measure_all", without_partitions_half)
    result = hera_sensitivity.run(StudyOptions(quick=True), Progress(disable=True))
    ablation, configurations = result.tables
    assert [row[0] for row in configurations.rows] == [node.cores for node in hera_sensitivity.NODES]
    for row in ablation.rows:
        assert float(row[5][:-1]) == pytest.approx(2 * float(row[4][:-1]), abs=0.2)
    values = {figure.name: figure.value for figure in result.figures}
    with_partitions = values["hera.emu_over.deeprecsys.without_partitions"] + values["hera.emu_gain.partitions"]
    assert values["hera.emu_gain.partitions"] == pytest.approx((100 + with_partitions) / 2)
    assert values["hera.emu_over.deeprecsys.least_configuration"] <= with_partitions
    assert_well_told(hera_sensitivity, result)


def test_where_no_pair_is_formed_nothing_is_gained():
    row = hera_sensitivity._configuration_row(hera_sensitivity._Pairs(HeraNode(), [], []), [])
    assert row[-3:] == ["100%", "100%", "0%"]
