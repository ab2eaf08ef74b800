"""A model that runs by a profile, without a server."""

from hebe.profile import EfficiencyTuple
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.serving.hosting.served_configuration import ServedConfiguration
from hebe.spec import SlaTarget

PIPELINE = (Lane(Placement.PIPELINE_ON_HOST, 1, 1, 32, 1),)
TUPLE = EfficiencyTuple("ranker", "small-2-cores", 100.0, 30.0, to_dict(PIPELINE), estimated=True)


def served(**changed):
    """Version 1 of `ranker` in a pipeline on two cores, 100 queries/s at 30 W."""
    fields = {"lanes": PIPELINE, "version": 1, "identity": "ab12", "sla": SlaTarget(50.0), "efficiency": TUPLE}
    return ServedConfiguration(**fields | changed)
