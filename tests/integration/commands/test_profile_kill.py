"""A profiler that is killed while it measures: what it had measured stays, and the next one goes on from there."""

import subprocess
import sys

from hebe.planning.server_split.search import Reached, gradient_search
from hebe.planning.server_split.space import ParallelismSpace
from hebe.profiling.files.journal import FILE_NAME, open_journal
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.server_configuration import Placement
from hebe.spec import SlaTarget

PATIENCE_S = 60.0
SPACE = ParallelismSpace(4, (16, 64), (Placement.MODEL_ON_HOST,))
SUBJECT = ProfileSubject(
    "dlrm", 3, "ab12", "scripted", "a processor, 4 cores", SlaTarget(20.0), "sizes production, seed 0"
)

PROFILER = """
import sys
from pathlib import Path
from hebe.planning.server_split.search import Reached, gradient_search
from hebe.planning.server_split.space import ParallelismSpace
from hebe.profiling.files.journal import open_journal
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.server_configuration import Placement
from hebe.spec import SlaTarget

def measure(configuration):
    if len(asked) == 5:
        print("measuring", flush=True)
        sys.stdin.read()
    asked.append(configuration)
    return Reached(100.0 * configuration[0].workers, 10.0)

asked = []
subject = ProfileSubject(
    "dlrm", 3, "ab12", "scripted", "a processor, 4 cores", SlaTarget(20.0), "sizes production, seed 0"
)
with open_journal(Path(sys.argv[1]), subject) as journal:
    space = ParallelismSpace(4, (16, 64), (Placement.MODEL_ON_HOST,))
    gradient_search(space, journal.evaluating(measure))
"""


def test_a_killed_profiler_loses_no_evaluation_and_leaves_no_lock(tmp_path):
    asked = []

    def measure(configuration):
        asked.append(configuration)
        return Reached(100.0 * configuration[0].workers, 10.0)

    whole = gradient_search(SPACE, measure)
    with subprocess.Popen(
        [sys.executable, "-c", PROFILER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"measuring\n", "it ended before the sixth evaluation"
        process.kill()
        assert process.wait(PATIENCE_S) < 0
    assert len((tmp_path / FILE_NAME).read_bytes().splitlines()) == 5
    asked.clear()
    with open_journal(tmp_path, SUBJECT) as journal:
        found = gradient_search(SPACE, journal.evaluating(measure))
    assert found == whole
    assert (journal.answered, len(asked)) == (5, whole.evaluations - 5)
