"""A profile of a server that is not there."""

from hebe.planning.server_split.search import Reached, SearchResult, gradient_search
from hebe.planning.server_split.space import ParallelismSpace
from hebe.profile import EfficiencyTuple, LatencyProfile, ScalabilityProfile
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.profiling.files.server_profile import ServerProfile
from hebe.server_configuration import to_dict
from hebe.spec import AcceleratorSpec, ServerSpec, SlaTarget

SERVER = ServerSpec("small-2-cores", 2, 8 << 30, accelerator=AcceleratorSpec("gpu", 1e12, 1 << 30, 1e11, 1e10))
SUBJECT = ProfileSubject("dlrm", 3, "ab12", "scripted", SERVER.name, SlaTarget(20.0), "sizes production, seed 0")


def found() -> SearchResult:
    """A search over two cores; what keeps no target among what it tried."""

    def evaluate(configuration):
        (here,) = configuration
        if here.batch_size == 16:
            return Reached(0.0, 10.0)
        return Reached(100.0 * here.workers, 30.0, 5.0)

    return gradient_search(ParallelismSpace(2, (16, 64)), evaluate)


def profile() -> ServerProfile:
    search = found()
    return ServerProfile(
        SUBJECT,
        SERVER,
        "hercules",
        "2026-05-04T03:02:01+00:00",
        EfficiencyTuple("dlrm", SERVER.name, search.reached.qps, 30.0, to_dict(search.best), estimated=True),
        "CPU utilization",
        {"whole": LatencyProfile((16, 64), (0.001, 0.002), (0.0, 0.0001))},
        ScalabilityProfile("dlrm", (1, 2), (100.0, 200.0), (1e9, 2e9), (1,), ((100.0,), (200.0,))),
        search,
    )
