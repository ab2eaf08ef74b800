"""What holds for tests of planning and simulating capacity."""

import pytest


@pytest.fixture
def few_budgets(monkeypatch):
    """`plan_pool` finds its frontier of three budgets, not of twenty: each takes some integer programs."""
    monkeypatch.setattr("hebe.capacity.pool_planner._FRONTIER_BUDGETS", 3)
