"""Kairos (Li et al., HPDC 2023), Table 3: five models and their p99 targets, served in DeepRecSys' configurations."""

from __future__ import annotations

from dataclasses import replace

from hebe.models.catalog import deeprecsys, disagreements
from hebe.spec import ModelSpec, SlaTarget

_SOURCE = "Kairos (Li et al., HPDC 2023), Table 3; configuration: DeepRecSys artifact"


def _model(name: str, configuration: ModelSpec, qos_ms: float, notes: str) -> ModelSpec:
    origin = configuration.name
    return replace(
        configuration,
        name=f"kairos-{name}",
        sla=SlaTarget(qos_ms, 99.0),
        source=_SOURCE,
        notes=(
            f"Table 3 states model and QoS alone; the models are those of DeepRecSys' public artifact, which Kairos "
            f"builds on: {origin}, see its notes. DeepRecSys' own target is {configuration.sla.latency_ms:g} ms at "
            f"p95. {notes}"
        ),
    )


ENTRIES: tuple[tuple[ModelSpec, ...], ...] = tuple(
    (spec,)
    for spec in (
        _model("ncf", deeprecsys.NCF, 5.0, disagreements.NCF),
        _model("rm2", deeprecsys.RM2, 350.0, disagreements.RM2),
        _model("wnd", deeprecsys.WND, 25.0, disagreements.WND),
        _model("mtwnd", deeprecsys.MT_WND, 25.0, disagreements.MT_WND),
        _model("dien", deeprecsys.DIEN, 35.0, disagreements.DIEN),
    )
)
