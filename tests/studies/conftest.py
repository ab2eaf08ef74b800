import importlib.util
import sys
from pathlib import Path

import pytest

from hebe.studies import STUDIES


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
