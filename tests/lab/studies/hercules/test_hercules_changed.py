"""Pairs with one assumption changed, searched."""

from rich.progress import Progress

from hebe.simulation.analytic.server_types import HERCULES
from hebe_lab.studies.hercules.fleet import ChangedPair, changed_pairs, model_of, with_lookups, without_products


def test_changed_pairs_are_what_the_search_finds():
    rmc2 = model_of("RMC2")
    plain, light = (
        changed_pairs([ChangedPair(model, HERCULES["T2"])], True, Progress(disable=True))[0]
        for model in (rmc2, without_products(with_lookups(rmc2, 20)))
    )
    assert light.best.qps > 5 * plain.best.qps
    assert light.baseline_qps <= light.best.qps
    assert {feature.lookups for feature in with_lookups(model_of("DIN"), 300).features} == {1, 300}
