"""Co-runs of Hera's models for the tests: not simulated, which would take a minute, but as they were predicted."""

import numpy as np

from hebe_lab.studies.hera.node import Measured


def as_predicted(_title, cases, _progress):
    """Every set sustains 0.97 of what is predicted; on half of the cores each, of what contention leaves."""
    answers = []
    for case in cases:
        alone = case.alone or [case.node.by_itself(tenant.model) for tenant in case.tenants]
        kept = np.full(len(case.tenants), 0.97 if len(case.tenants) > 1 else 1.0)
        if case.alone:
            tables = case.node.tables
            at = [tables.index_of(tenant.model) for tenant in alone], [tenant.workers for tenant in alone]
            contention = tables.contention
            kept *= contention.kept(
                *(part[at][None] for part in (contention.demand, contention.share, contention.alone))
            )[0]
        together = kept * [tenant.qps for tenant in case.tenants]
        answers.append(Measured(tuple(together.tolist()), tuple(tenant.qps for tenant in alone)))
    return answers
