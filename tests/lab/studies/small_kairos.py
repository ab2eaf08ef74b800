"""The kairos studies made small for the tests: one process, few pools, few queries, generated measurements."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from hebe.simulation import sweep as sweeping
from hebe_lab.studies.kairos.setting import PRICES, settings

from .study_page import assert_well_told

BUDGET = 1.1
MODELS = ("rm2", "wnd")


@contextmanager
def small(study, **attributes):
    """The module `study` with a small budget and so many of its attributes changed."""

    def with_small_budget(options, models=MODELS):
        return {model: replace(setting, budget_per_hour=BUDGET) for model, setting in settings(options, models).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})
        patch.setattr(study, "settings", with_small_budget)
        for name, value in attributes.items():
            patch.setattr(study, name, value)
        yield


def assert_told_of_measurements(study, result):
    """What holds of every kairos study's result on measurements."""
    assert_well_told(study, result)
    assert all(figure.name.startswith("kairos.fig") for figure in result.figures)
    assert "all measurements" in "".join(block for block in result.content if isinstance(block, str))


def is_within_budget(pool):
    """Whether the budget buys a pool such as "(1, 0, 2, 0)"."""
    return np.dot(counts(pool), list(PRICES.values())) <= BUDGET * (1 + 1e-9)


def counts(pool):
    """The counts in "(1, 0, 2, 0)"."""
    return [int(count) for count in pool.strip("()").split(",")]
