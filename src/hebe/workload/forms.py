"""The short forms in which a command line names a workload: `production`, `poisson`, `zipf:1.2`, ...

One table per kind; the tables are also what the error messages and `--help` list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hebe.workload.arrivals import (
    ArrivalProcess,
    BurstArrivals,
    ConstantArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from hebe.workload.key_skew import KeySkew, ReuseKeys, UniformKeys, ZipfKeys
from hebe.workload.query_sizes import (
    FixedSizes,
    LogNormalSizes,
    NormalSizes,
    ProductionSizes,
    QuantileSizes,
    QuerySizes,
)
from hebe.workload.rate_trace import read_rate_trace
from hebe.workload.reuse_profile import fit_reuse_profile, read_reuse_histogram
from hebe.workload.text_errors import RecordingError, WorkloadError

SIZE_FORMS = (
    "production",
    "mlperf",
    "fixed:ITEMS",
    "normal:MEAN:DEVIATION",
    "lognormal[:MU:SIGMA]",
    "quantiles:ITEMS,ITEMS,...",
)
ARRIVAL_FORMS = ("poisson", "constant", "burst[:FACTOR:BURST_S:PERIOD_S]", "trace:FILE[:SPEED]")
KEY_FORMS = ("uniform", "zipf:ALPHA", "reuse[:FILE[:NAME]]")

Kind = TypeVar("Kind")


def query_sizes(form: str) -> QuerySizes:
    """The distribution that one of `SIZE_FORMS` names; raises `WorkloadError`, which lists them."""

    def build(name: str, rest: list[str]) -> QuerySizes | None:
        match name, rest:
            case "production", []:
                return ProductionSizes()
            case "mlperf", []:
                return QuantileSizes()
            case "fixed", [items]:
                return FixedSizes(int(items))
            case "normal", [mean, deviation]:
                return NormalSizes.unbounded(float(mean), float(deviation))
            case "lognormal", []:
                return LogNormalSizes()
            case "lognormal", [mu, sigma]:
                return LogNormalSizes.unbounded(float(mu), float(sigma))
            case "quantiles", [sizes]:
                return QuantileSizes(tuple(int(size) for size in sizes.split(",")))
        return None

    return _parse("query sizes", form, SIZE_FORMS, build)


def arrivals(form: str) -> ArrivalProcess:
    """The arrival process that one of `ARRIVAL_FORMS` names; raises `WorkloadError`, which lists them, or
    `RecordingError` for a file that it names."""

    def build(name: str, rest: list[str]) -> ArrivalProcess | None:
        match name, rest:
            case "poisson", []:
                return PoissonArrivals()
            case "constant", []:
                return ConstantArrivals()
            case "burst", []:
                return BurstArrivals()
            case "burst", [factor, burst_s, period_s]:
                return BurstArrivals(float(factor), float(burst_s), float(period_s))
            case "trace", [path]:
                return TraceArrivals(_recorded(read_rate_trace, path))
            case "trace", [path, speed]:
                return TraceArrivals(_recorded(read_rate_trace, path), float(speed))
        return None

    return _parse("arrivals", form, ARRIVAL_FORMS, build)


def key_skew(form: str) -> KeySkew:
    """The key distribution that one of `KEY_FORMS` names; raises `WorkloadError`, which lists them, or `RecordingError`
    for a file that it names."""

    def build(name: str, rest: list[str]) -> KeySkew | None:
        match name, rest:
            case "uniform", []:
                return UniformKeys()
            case "zipf", [alpha]:
                return ZipfKeys(float(alpha))
            case "reuse", []:
                return ReuseKeys()
            case "reuse", [path]:
                return ReuseKeys(fit_reuse_profile(_recorded(read_reuse_histogram, path)))
            case "reuse", [path, histogram]:
                return ReuseKeys(fit_reuse_profile(_recorded(read_reuse_histogram, path, histogram)))
        return None

    return _parse("keys", form, KEY_FORMS, build)


def _recorded(read: Callable[..., Kind], *where: str) -> Kind:
    try:
        return read(*where)
    except WorkloadError as fault:
        raise RecordingError(str(fault)) from None


def _parse(what: str, form: str, forms: tuple[str, ...], build: Callable[[str, list[str]], Kind | None]) -> Kind:
    name, *rest = form.strip().split(":")
    try:
        built = build(name, rest)
    except WorkloadError:
        raise
    except ValueError:
        built = None
    if built is None:
        raise WorkloadError(f"{what} {form!r}: must be one of {', '.join(forms)}")
    return built
