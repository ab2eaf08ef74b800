import pytest

from hebe.embeddings.updates.log_directory import DirectoryCarrier, LogDirectory

from .fault_conformance import FaultConformance
from .update_conformance import UpdateLogConformance


class TestLogDirectory(UpdateLogConformance, FaultConformance):
    @pytest.fixture
    def make_log(self, tmp_path):
        return lambda: LogDirectory(tmp_path / "log")

    @pytest.fixture
    def carrier_of(self):
        return DirectoryCarrier
