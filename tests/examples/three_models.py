"""Three models that may share servers of four cores, as `hebe plan colocate` reads them."""

from pathlib import Path

from hebe.capacity import plan_colocate

SERVER = "cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n4,3,1e9,4e9\n"
DEMAND = "model,qps\nncf,9000\nrm,70\ndin,400\n"
WAYS = (1, 2, 3)


def points(model, qps_a_worker, limit, kept, traffic):
    """Lines of a model: `limit` workers can be used, and `kept` is left with one and with two ways."""
    lines = []
    for workers in range(1, 5):
        whole = qps_a_worker * min(workers, limit)
        for ways, share in zip(WAYS, (*kept, 1.0), strict=True):
            last = f"{traffic * min(workers, limit):g},{1e8 * workers:g}" if ways == 3 else ","
            lines.append(f"{model},{workers},{ways},{whole * share:g},{last},false")
    return lines


HEADER = "model,workers,cache_ways,qps,bandwidth_bytes_per_s,memory_bytes,estimated"
LINES = [
    HEADER,
    *points("rm", 10, 2, (0.9, 0.95), 2e8),
    *points("ncf", 1000, 4, (0.5, 0.8), 1e7),
    *points("din", 50, 4, (0.7, 0.9), 5e7),
]
PROFILES = "\n".join(LINES) + "\n"


def write_three_models():
    """`profiles.csv`, `server.csv` and `demand.csv`, in the folder that is worked in."""
    for name, text in (("profiles", PROFILES), ("server", SERVER), ("demand", DEMAND)):
        Path(f"{name}.csv").write_text(text, encoding="utf-8")


def plan_three_models(**changes):
    """The plan of these files, by the optimal policy."""
    return plan_colocate(**({"profiles": "profiles.csv", "server": "server.csv", "demand": "demand.csv"} | changes))
