"""The planners' timed steps on small inputs: each gives its figures, and what it times is right."""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.bench.planning import solvers as planning_solvers


@pytest.fixture
def small(monkeypatch):
    """Little of everything."""
    monkeypatch.setattr(planning_solvers, "_MATCHINGS", {20: 0.05, 200: 1.0})
    monkeypatch.setattr(planning_solvers, "_HALF_BUSY", (200,))
    monkeypatch.setattr(planning_solvers, "_RANKED", 1_000)
    monkeypatch.setattr(planning_solvers, "_LARGE_FLEET", (5, 20))
    monkeypatch.setattr(planning_solvers, "_LONG_ROUNDS", 60)
    monkeypatch.setattr(planning_solvers, "_PAIRED", 20)
    monkeypatch.setattr(planning_solvers, "_COLOCATED", 10)
    monkeypatch.setattr(planning_solvers, "_COLOCATED_SERVERS", 60)


@pytest.mark.usefixtures("small")
def test_every_step_gives_its_figures():
    figures = {figure.name: figure for figure in planning_solvers.solver_figures(True, Progress(disable=True))}
    assert set(figures) == {
        "matching.ms.20x20", "matching.ms.200x200", "matching.ms.200x200.busy", "pool.rank_s.1e6", "provision.ms.10x6",
        "provision.gap.100x1000", "provision.s.100x1000", "affinity.s.500_models", "colocate.ms.5000_servers",
    }  # fmt: skip
    assert all(figure.value >= 0 for figure in figures.values())
    assert all(figure.target for figure in figures.values())
    assert "half of the instances busy" in figures["matching.ms.200x200.busy"].note


def test_a_matching_that_is_not_the_cheapest_is_an_error():
    cost = np.array([[1.0, 2.0], [5.0, 1.0]])
    planning_solvers._check_optimal(cost, np.array([1, 1]), np.array([0, 1]))
    with pytest.raises(RuntimeError, match="a matching costs 7"):
        planning_solvers._check_optimal(cost, np.array([1, 1]), np.array([1, 0]))
