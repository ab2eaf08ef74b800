import importlib.util
import sys
from pathlib import Path

import pytest

from hebe_lab.studies import STUDIES
from hebe_lab.study import StudyOptions
from tests.examples.kairos_measurements import write_measurements
from tests.lab.studies.small_kairos import MODELS


@pytest.fixture
def queueing(monkeypatch):
    """`queueing` registered as the only study."""
    path = Path(__file__).with_name("queueing_study.py")
    spec = importlib.util.spec_from_file_location("queueing_study", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "queueing_study", module)
    for name in list(STUDIES):
        monkeypatch.delitem(STUDIES, name)
    monkeypatch.setitem(STUDIES, "queueing", "queueing_study")
    return module


@pytest.fixture(scope="session")
def kairos_options(tmp_path_factory):
    """Options of a quick study on generated measurements of two models."""
    folder = tmp_path_factory.mktemp("measured")
    write_measurements(folder, MODELS)
    return StudyOptions(quick=True, data=folder)
