"""Profiles of servers that are not there, as `hebe profile` writes them."""

from dataclasses import replace

from hebe.planning.server_split.search import Reached, SearchResult
from hebe.profile import EfficiencyTuple, LatencyProfile, ScalabilityProfile
from hebe.profiling.files.server_profile import ServerProfile, write_server_profile
from hebe.server_configuration import Lane, Placement, to_dict

from .profiles import SERVER, SUBJECT

ON_HOST = Lane(Placement.MODEL_ON_HOST, workers=2, batch_size=64)
PIPELINE = Lane(Placement.PIPELINE_ON_HOST, workers=1, batch_size=64, dense_workers=1)


def server_profile(model="m", server="cpu", lanes=(ON_HOST,), fixed_s=1e-3, item_s=1e-4, scalability=None):
    """Of a model that takes `fixed_s` and `item_s` an item, in batches of 1, 16 and 64."""
    reached = Reached(100.0 * lanes[0].workers, 30.0)
    sizes = (1, 16, 64)
    service_s = tuple(fixed_s + items * item_s for items in sizes)
    latency = LatencyProfile(sizes, service_s, tuple(value / 50 for value in service_s))
    whole = len(lanes) == 1 and lanes[0].placement is Placement.MODEL_ON_HOST
    return ServerProfile(
        replace(SUBJECT, model=model, server=server),
        replace(SERVER, name=server),
        "hercules",
        "2026-05-04T03:02:01+00:00",
        EfficiencyTuple(model, server, reached.qps, reached.power_watts, to_dict(lanes)),
        "RAPL",
        {"whole": latency} if whole else {"sparse": latency, "dense": latency},
        scalability,
        SearchResult(lanes, reached, lanes, {lanes: reached}, (), 1),
    )


def scaling(model, qps, traffic=1e9):
    """Throughput by workers, with the whole cache."""
    workers = tuple(range(1, len(qps) + 1))
    rows = ((),) * (len(qps) - 1) + ((qps[-1] * 0.8, qps[-1]),)
    return ScalabilityProfile(model, workers, tuple(qps), tuple(traffic * count for count in workers), (1, 2), rows)


def profile_file(path, *, sla=None, load=None, **changes):
    """A profile on disk, of another SLA target or load where that is given."""
    made = server_profile(**changes)
    subject = replace(made.subject, sla=sla or made.subject.sla, load=load or made.subject.load)
    write_server_profile(path, replace(made, subject=subject))
    return path
