"""Entries of a paper's table of models: production size, p95."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hebe.models.catalog.layout import Layout
from hebe.spec import ModelSpec, SlaTarget


@dataclass(frozen=True)
class PaperTable:
    """What all models of one table have in common; `notes` ends the notes of each, `dlrm_notes` begins its DLRMs'."""

    source: str
    notes: str
    dlrm_notes: str
    interaction: str
    prefix: str = ""

    def entry(self, name: str, layout: Layout, sla_ms: float, notes: str, **fields: Any) -> ModelSpec:
        """A model of the table; `fields` are those of its spec that are its own."""
        tables, features = layout
        return ModelSpec(
            name=f"{self.prefix}{name}",
            tables=tables,
            features=features,
            sla=SlaTarget(sla_ms, 95.0),
            size="production",
            source=self.source,
            notes=f"{notes} {self.notes}",
            **fields,
        )

    def dlrm(
        self, name: str, layout: Layout, bottom: tuple[int, ...], top: tuple[int, ...], sla_ms: float, notes: str
    ) -> ModelSpec:
        """A DLRM; its first bottom width is the dense input's."""
        return self.entry(
            name,
            layout,
            sla_ms,
            f"{self.dlrm_notes} {notes}",
            architecture="dlrm",
            dense_dim=bottom[0],
            towers={"bottom": bottom[1:], "top": top},
            settings={"interaction": self.interaction},
        )
