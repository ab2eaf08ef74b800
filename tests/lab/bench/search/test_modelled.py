from rich.progress import Progress

from hebe.planning.server_split.search import Reached, SearchResult
from hebe.server_configuration import Lane, Placement
from hebe_lab.bench.search import modelled as search_modelled


def test_measures_what_it_promises(monkeypatch) -> None:
    monkeypatch.setattr(search_modelled, "MODELS", ("dlrm-rmc1", "din"))
    monkeypatch.setattr(search_modelled, "_QUICK_BATCH_SIZES", (128, 1024))
    with Progress(disable=True) as progress:
        figures = {figure.name: figure for figure in search_modelled.modelled_figures(True, progress)}
    kinds = ("over_exhaustive", "evaluations_share", "algorithm_1_over_exhaustive", "deeprecsys_over_exhaustive")
    assert set(figures) == {f"search.{kind}.{model}" for kind in kinds for model in search_modelled.MODELS}
    for model in search_modelled.MODELS:
        found, exact, simple = (figures[f"search.{kind}.{model}"].value for kind in (kinds[0], *kinds[2:]))
        assert 0 < max(exact, simple) <= found <= 1
        assert found > 0.97
        assert 0 < figures[f"search.evaluations_share.{model}"].value < 0.5, "of a space that is small here"
    assert "pipeline-on-host" in figures["search.over_exhaustive.dlrm-rmc1"].note


def test_a_search_that_may_add_a_lane_is_compared_with_lanes_alone():
    alone = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, dense_workers=1)
    two = (alone, Lane(Placement.MODEL_ON_HOST, 2, 1, 64))
    found = SearchResult(two, Reached(150.0), two, {(alone,): Reached(100.0), two: Reached(150.0)}, (), evaluations=2)
    every = SearchResult((alone,), Reached(100.0), (alone,), {(alone,): Reached(100.0)}, (), evaluations=1)
    over, share = search_modelled.search_figures("m.T7", found, every, "so")
    assert over.value == 1.5
    assert over.note.endswith("; of every lane alone, 1 configurations, the best reaches 100")
    assert "2 configurations, where lanes alone are 1; " in share.note


def test_what_was_measured_in_turns_counts_unless_both_found_the_same():
    slow, fast, third = ((Lane(Placement.MODEL_ON_HOST, 1, 1, size),) for size in (16, 32, 64))
    tried = {slow: Reached(100.0), fast: Reached(110.0), third: Reached(90.0)}
    every = SearchResult(fast, tried[fast], fast, tried, (), evaluations=3)
    other = SearchResult(slow, tried[slow], slow, {slow: tried[slow]}, (), evaluations=1)
    same = SearchResult(fast, Reached(99.0), fast, {fast: Reached(99.0)}, (), evaluations=1)
    in_turns = {slow: [50.0, 50.0, 52.0], fast: [100.0, 100.0, 104.0]}
    over, _ = search_modelled.search_figures("m", other, every, "so", in_turns)
    assert (over.value, over.runs) == (0.5, 3)
    assert over.note.endswith("; in turns 50 and 100")
    assert search_modelled.search_figures("m", other, every, "so")[0].value == 100 / 110
    assert search_modelled.search_figures("m", same, every, "so", in_turns)[0].value == 1.0
