"""HPS, Fig. 9: what default vectors cost a trained model, by how many keys get one.

A model is trained on the head of a click log, stored, and served from a cache over a hash map. Its held-out tail is
scored in batches, asynchronously: keys that the cache lacks get the default vector, and their rows are there before the
next batch. How many lack is varied by the size of the cache and by what it has seen before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.embeddings.config.hierarchy_config import CacheConfig, HierarchyConfig, VolatileConfig, VolatileType
from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository
from hebe.models.training.auc import roc_auc
from hebe.models.training.criteo import CriteoFile, CriteoFormatError
from hebe.models.training.criteo_features import CriteoTransform
from hebe.models.training.criteo_sample import generate_criteo
from hebe.models.training.training import TrainingError, held_out_start, train
from hebe.query import Batch, SubQuery
from hebe.report.document import Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.style import INK, QUIET, SERIES, drawing, to_svg
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe_lab.studies.hps.setting import PAPER_BATCH, Values, scratch_directory
from hebe_lab.study import StudyError, StudyOptions, StudyResult

DESCRIPTION = "HPS, Fig. 9: accuracy and AUC of a trained model against the cache's hit rate, and default vectors."
DATA = "criteo/"

THRESHOLDS = (0.0, 0.5, 1.0)
PAPER_CACHE = 0.5
"""The paper's Table 1."""
FILES = ("criteo/train.txt", "criteo/train.csv", "criteo/train.tiny.csv")
"""Of `--data`, the first that is there."""

_BATCHES = 40
_LAST = 1 / 3
_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Effort:
    """Most rows of the click log, and cache sizes, as shares of each table."""

    rows: int
    caches: tuple[float, ...]


EFFORTS = (
    Effort(20_000, (0.0005, 0.02, PAPER_CACHE)),
    Effort(100_000, (0.0005, 0.005, 0.02, 0.1, PAPER_CACHE)),
    Effort(1_000_000, (0.0005, 0.002, 0.005, 0.02, 0.05, 0.1, PAPER_CACHE)),
)


@dataclass(frozen=True, slots=True)
class Default:
    """The default vector: what it is filled with, `of_mean` times the mean of the table's rows added."""

    name: str
    value: float = 0.0
    of_mean: float = 0.0


ZERO = Default("0")
DEFAULTS = (ZERO, Default("the table's mean", of_mean=1.0), Default("0.1", 0.1), Default("1", 1.0))


@dataclass(frozen=True, slots=True)
class Case:
    """How the tail is served: the cache's share of each table, the threshold, which share of the trained rows the cache
    has seen before (the last of them), the default vector. `at_once`: all in one batch.
    """

    cache: float
    threshold: float = 0.0
    seen: float = 0.0
    default: Default = ZERO
    at_once: bool = False

    @property
    def state(self) -> str:
        """What the cache had seen, in words."""
        if self.at_once:
            return "cold, one batch"
        return f"has seen {self.seen:.0%}" if self.seen else "cold"


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores float32 `[n]` of the tail; of each batch the share of distinct keys that the cache had, and the share of
    all keys that were answered with their own rows."""

    scores: npt.NDArray[np.float32]
    hit_rates: Values
    answered: Values
    keys: npt.NDArray[np.int64]
    """Keys of each batch, and distinct ones asked of the cache, `[batches, 2]`: what the shares are of."""

    @property
    def hit_rate(self) -> float:
        """Of all distinct keys of a batch."""
        return float(np.average(self.hit_rates, weights=self.keys[:, 1]))

    @property
    def own_rows(self) -> float:
        """The share of all keys."""
        return float(np.average(self.answered, weights=self.keys[:, 0]))


@dataclass(frozen=True, slots=True)
class Log:
    """What was trained on and scored: the file's name (None: made up), rows of either part, the tail's labels."""

    file: str | None
    trained_rows: int
    labels: npt.NDArray[np.float32]
    batch: int
    vocabulary: int
    """Distinct keys of the tail."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one way of serving: the share of right answers, the AUC, the share of answers that are not those of all rows,
    and the AUC that is lost against these, with its 95% interval over resampled rows."""

    accuracy: float
    auc: float
    changed: float
    auc_lost: float
    low: float
    high: float


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Train, then serve the tail in every way."""
    effort = options.pick(*EFFORTS)
    cases = _cases(effort)
    with scratch_directory() as directory:
        log, exact, scored = score_cases(_file(options), effort.rows, cases, directory, progress)
    return told(log, exact, cases, scored)


def batch_size(held_out_rows: int) -> int:
    """Batches are as large as the paper's, but for a short tail, which still makes some tens of them."""
    return max(1, min(PAPER_BATCH, held_out_rows // _BATCHES))


def _file(options: StudyOptions) -> Path | None:
    if options.data is None:
        return None
    for name in FILES:
        if (options.data / name).is_file():
            return options.data_file(name)
    raise StudyError(f"{options.data}: there is none of {', '.join(FILES)}: a click log of Criteo's format")


def _cases(effort: Effort) -> list[Case]:
    """Those of Fig. 9, then those against the hit rate, then those of default vectors."""
    cases = [Case(PAPER_CACHE, threshold) for threshold in THRESHOLDS]
    cases += [Case(cache, seen=seen) for seen in (0.0, 0.1, 1.0) for cache in effort.caches]
    cases += [Case(PAPER_CACHE, at_once=True)]
    cases += [Case(cache, seen=seen, default=default) for cache, seen in _compared(effort) for default in DEFAULTS]
    return list(dict.fromkeys(cases))


def _compared(effort: Effort) -> tuple[tuple[float, float], tuple[float, float]]:
    """Cache and share seen before where default vectors are compared: many of them, and few."""
    return (effort.caches[0], 0.0), (PAPER_CACHE, 1.0)


def told(log: Log, exact: Scored, cases: Sequence[Case], scored: Sequence[Scored]) -> StudyResult:
    """What the scores come to, against those with all rows in memory."""
    by_case = dict(zip(cases, scored, strict=True))
    quality = {case: _quality(log.labels, answer.scores, exact.scores) for case, answer in by_case.items()}
    best = _quality(log.labels, exact.scores, exact.scores)
    fig_9 = [case for case in cases if case.cache == PAPER_CACHE and _is_plain(case) and case.seen == 0]
    spread = [case for case in cases if case.threshold == 0 and case.default == ZERO]
    others = {(case.cache, case.seen) for case in cases if case.default != ZERO}
    compared = [case for case in spread if _is_plain(case) and (case.cache, case.seen) in others]
    compared += [case for case in cases if case.default != ZERO]
    compared.sort(key=lambda case: (case.cache, case.seen))
    majority = max(float(log.labels.mean()), 1 - float(log.labels.mean()))
    return StudyResult(
        figures=_figures(log, by_case, quality, best, fig_9),
        content=[
            _setting(log),
            Heading("Fig. 9: three thresholds, from a cold cache on"),
            Picture(
                _courses(log, {f"threshold {case.threshold:g}": by_case[case] for case in fig_9}),
                "Above: right answers of each batch. Below: distinct keys of the batch that the cache had. Where lines "
                "lie on one another, one shows.",
            ),
            Table(
                f"Cache {PAPER_CACHE:.0%}, cold at first",
                ["threshold", "hit rate", "hit rate, last third", "accuracy", "AUC", "answers changed", "the paper"],
                [
                    [f"{case.threshold:g}", f"{by_case[case].hit_rate:.1%}", f"{_last_rate(by_case[case]):.1%}",
                     f"{quality[case].accuracy:.4f}", f"{quality[case].auc:.4f}", f"{quality[case].changed:.2%}",
                     "accuracy alike; hit rate above 90%"]
                    for case in fig_9
                ],
                f"With all rows in memory: accuracy {best.accuracy:.4f}, AUC {best.auc:.4f}; who always says no is "
                f"right in {majority:.4f}. Answers changed: those on the other side of one half. Hit rates count the "
                "distinct keys of a batch. The paper's accuracies stand in its plot only.",
            ),
            Heading("Against the hit rate"),
            Picture(
                _against_hit_rate({case: (by_case[case], quality[case]) for case in spread}, best, majority),
                "Lines: all rows in memory. Dots: a held-out part scored with threshold 0, filled where the cache had "
                "seen rows before.",
            ),
            Table(
                "Threshold 0: what the share of defaulted keys costs",
                ["cache", "state", "hit rate", "own rows", "accuracy", "AUC", "AUC lost", "its interval",
                 "answers changed"],
                [
                    [f"{case.cache:.3g}", case.state, f"{by_case[case].hit_rate:.1%}", f"{by_case[case].own_rows:.1%}",
                     f"{quality[case].accuracy:.4f}", f"{quality[case].auc:.4f}", f"{quality[case].auc_lost:.4f}",
                     f"{quality[case].low:.4f} to {quality[case].high:.4f}", f"{quality[case].changed:.2%}"]
                    for case in sorted(spread, key=lambda case: by_case[case].own_rows)
                ],
                "Cache: its share of each table. State: which share of the trained rows it has seen, the last of them. "
                "Own rows: of all keys, the share that did not get the default vector.",
            ),
            Heading("Default vectors"),
            Table(
                "Which default vector",
                ["cache", "state", "hit rate", "default vector", "accuracy", "AUC", "AUC lost", "answers changed"],
                [
                    [f"{case.cache:.3g}", case.state, f"{by_case[case].hit_rate:.1%}", case.default.name,
                     f"{quality[case].accuracy:.4f}", f"{quality[case].auc:.4f}", f"{quality[case].auc_lost:.4f}",
                     f"{quality[case].changed:.2%}"]
                    for case in compared
                ],
                "HPS and Hebe fill a default vector with one number a table, 0 unless told otherwise. The table's mean "
                "is that of all numbers of its rows.",
            ),
            _explanation(log, by_case, quality, fig_9, compared),
        ],
        lead=["hps.fig9.accuracy_lost.cold", "hps.fig9.accuracy_lost.seen", "hps.fig9.auc_lost.seen"],
    )  # fmt: skip


def _is_plain(case: Case) -> bool:
    return case.default == ZERO and not case.at_once


def _quality(
    labels: npt.NDArray[np.float32], scores: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]
) -> Quality:
    right = (scores > 0.5) == (labels > 0.5)
    auc = roc_auc(labels, scores)
    if scores is exact:
        return Quality(float(right.mean()), auc, 0.0, 0.0, 0.0, 0.0)
    chance, lost = np.random.default_rng(0), []
    for _ in range(_DRAWS):
        drawn = chance.integers(0, len(labels), len(labels))
        lost.append(roc_auc(labels[drawn], exact[drawn]) - roc_auc(labels[drawn], scores[drawn]))
    low, high = np.nanpercentile(lost, [2.5, 97.5])
    changed = float(((scores > 0.5) != (exact > 0.5)).mean())
    return Quality(float(right.mean()), auc, changed, roc_auc(labels, exact) - auc, float(low), float(high))


def _last_rate(answer: Scored) -> float:
    """The hit rate of the last third of the batches."""
    last = slice(-max(1, round(_LAST * len(answer.hit_rates))), None)
    return float(np.average(answer.hit_rates[last], weights=answer.keys[last, 1]))


def _figures(
    log: Log, by_case: Mapping[Case, Scored], quality: Mapping[Case, Quality], best: Quality, fig_9: Sequence[Case]
) -> list[Figure]:
    rows = len(log.labels)
    figures = []
    for case in fig_9:
        name = f"threshold_{case.threshold:g}".replace("0.5", "half")
        figures.append(
            Figure(f"hps.fig9.accuracy.{name}", quality[case].accuracy, "share", runs=rows, paper="alike for all three",
                   note=f"{best.accuracy:.4f} with all rows in memory; cold at first")
        )  # fmt: skip
        figures.append(
            Figure(f"hps.fig9.hit_rate.{name}", _last_rate(by_case[case]), "share of distinct keys",
                   runs=len(by_case[case].hit_rates), paper="above 0.9", note="of the last third of the batches")
        )  # fmt: skip
    for name, case in (("cold", Case(PAPER_CACHE)), ("seen", Case(PAPER_CACHE, seen=1.0))):
        each, answer = quality[case], by_case[case]
        figures.append(
            Figure(f"hps.fig9.accuracy_lost.{name}", best.accuracy - each.accuracy, "share", runs=rows,
                   paper="none to be seen", note=f"threshold 0, hit rate {answer.hit_rate:.1%}")
        )  # fmt: skip
        figures.append(
            Figure(f"hps.fig9.auc_lost.{name}", each.auc_lost, "AUC", each.low, each.high, rows,
                   note=f"threshold 0, of {best.auc:.4f}; {answer.own_rows:.1%} of the keys got their own rows")
        )  # fmt: skip
    return figures


def _setting(log: Log) -> str:
    made_up = (
        "made-up rows of Criteo's form (give --data DIR with a real click log, DIR/criteo/train.txt or train.csv)"
        if log.file is None
        else f"rows of {log.file}"
    )
    return (
        f"criteo-dlrm, a small DLRM of 26 tables of 20,000 rows of 16 numbers, trained in one pass on "
        f"{log.trained_rows:,} {made_up}; the {len(log.labels):,} rows after them are served in batches of "
        f"{log.batch:,}, and have {log.vocabulary:,} distinct keys. The paper: a DLRM trained on the Criteo terabyte "
        "logs, 90 GB of rows of 128 numbers, served in batches of 1,024."
    )


def _explanation(
    log: Log,
    by_case: Mapping[Case, Scored],
    quality: Mapping[Case, Quality],
    fig_9: Sequence[Case],
    compared: Sequence[Case],
) -> str:
    cold, waiting = fig_9[0], fig_9[-1]
    seen = Case(PAPER_CACHE, seen=1.0)
    worst = max((case for case in compared if case.default != ZERO), key=lambda case: quality[case].auc_lost)
    always_no = len(np.unique(by_case[waiting].scores > 0.5)) == 1
    return (
        "Where ours differs. A threshold of 1 answers as if all rows were in memory. With 0 the accuracy over the "
        f"tail, cold start included, is {_apart(quality[waiting].accuracy - quality[cold].accuracy)}, with "
        f"{by_case[cold].own_rows:.0%} of the keys answered with their own rows; once the cache has seen the trained "
        f"rows, {by_case[seen].own_rows:.0%} are, and the AUC is {_apart(quality[seen].auc_lost)}. The paper's hit "
        f"rates are higher: its logs are some {4e9 / (log.trained_rows + len(log.labels)):,.0f} times longer, so that "
        f"few of its keys are new, while here {26 * len(log.labels):,} keys of the tail are {log.vocabulary:,} "
        "distinct ones. Algorithm 1 as printed divides the missing keys by the size of the cache, not by the keys "
        "asked for, which would make its hit rates higher too; the paper does not say which of the two Fig. 9 shows. "
        "Accuracy tells little where most answers are no; the AUC tells more. "
        + ("This model says no to every item: it has seen few, and its accuracy is that of no. " if always_no else "")
        + "A row that training never met, or rarely, is near zero here, so that a default vector of zeros costs little "
        "for rare keys, which are those that a cache lacks; where training has met too few items for a row to be worth "
        "more than chance, the AUC without it may even be higher. A vector like none of the model's costs more: "
        f"{worst.default.name} in every number loses {quality[worst].auc_lost:.4f} of the AUC at a hit rate of "
        f"{by_case[worst].hit_rate:.0%}."
    )


def _apart(lost: float) -> str:
    """In words, to four places."""
    if abs(lost) < 5e-5:
        return "the same"
    return f"{abs(lost):.4f} {'lower' if lost > 0 else 'higher'}"


def _courses(log: Log, answers: Mapping[str, Scored]) -> str:
    """Right answers and hit rate of each batch."""
    with drawing(height=5.4) as (canvas, axes):
        axes.remove()
        above, below = canvas.subplots(2, 1, sharex=True)
        for number, (name, answer) in enumerate(answers.items()):
            starts = np.arange(0, len(log.labels), log.batch)
            right = ((answer.scores > 0.5) == (log.labels > 0.5)).astype(np.float64)
            sizes = np.diff(np.append(starts, len(log.labels)))
            style = {"color": SERIES[number], "linewidth": 3.2 - 1.1 * number, "alpha": 0.9}
            batches = np.arange(1, len(starts) + 1)
            above.plot(batches, 100 * np.add.reduceat(right, starts) / sizes, label=name, **style)
            below.plot(batches, 100 * answer.hit_rates, **style)
        above.set_ylabel("right answers (%)")
        above.set_title("Accuracy and hit rate from a cold cache on")
        below.set_ylabel("hit rate (%)")
        below.set_ylim(0, 100)
        below.set_xlabel("batch")
        canvas.legend(loc="outside lower center", ncols=len(answers))
        return to_svg(canvas, f"Accuracy and hit rate of each batch: {', '.join(answers)}")


def _against_hit_rate(answers: Mapping[Case, tuple[Scored, Quality]], best: Quality, majority: float) -> str:
    """Accuracy and AUC over the hit rate."""
    with drawing(width=8.4, height=4.2) as (canvas, axes):
        axes.remove()
        accuracy, auc = canvas.subplots(1, 2)
        for case, (answer, quality) in answers.items():
            filled = SERIES[0] if case.seen else "none"
            for panel, value in ((accuracy, quality.accuracy), (auc, quality.auc)):
                panel.plot(100 * answer.hit_rate, 100 * value, "o", color=SERIES[0], markerfacecolor=filled)
        accuracy.axhline(100 * best.accuracy, color=INK, linewidth=1.0)
        accuracy.axhline(100 * majority, color=QUIET, linewidth=1.0, linestyle="--")
        accuracy.annotate("always no", (0.02, 100 * majority), xycoords=("axes fraction", "data"), xytext=(0, 3),
                          textcoords="offset points", fontsize=9, color=QUIET)  # fmt: skip
        auc.axhline(100 * best.auc, color=INK, linewidth=1.0)
        for panel, name in ((accuracy, "Accuracy (%)"), (auc, "AUC (%)")):
            panel.set_xlim(-3, 103)
            panel.set_xlabel("hit rate (%)")
            panel.set_title(name)
        return to_svg(canvas, "Accuracy and AUC against the hit rate")


MODEL = "criteo-dlrm"

_READ_ROWS = 4096
_WARM_UP_BATCH = 1024
_SAME_SCORE = 1e-5
_INSERTION_QUEUE = 4096


@dataclass(frozen=True, slots=True)
class _Rows:
    """Labels float32 `[n]`, keys int64 `[n, 26]`, dense float32 `[n, 13]`."""

    labels: npt.NDArray[np.float32]
    keys: npt.NDArray[np.int64]
    dense: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)


def score_cases(
    data: Path | None, most_rows: int, cases: Sequence[Case], directory: Path, progress: Progress
) -> tuple[Log, Scored, list[Scored]]:
    """Train on the head of `data` (None: on made-up rows), score its tail with all rows in memory, and as each case
    has it.

    Raises `StudyError` for a file that cannot be trained on, RuntimeError where a score of an item that got all its
    rows is not the one that it has with all rows in memory.
    """
    repository = ModelRepository(directory / "models")
    path = data or directory / "made-up.tsv"
    if data is None:
        generate_criteo(path, most_rows)
    task = progress.add_task(f"training {MODEL}")
    try:
        trained = train(
            entry(MODEL),
            path,
            repository,
            skip_bad_lines=True,
            most_rows=most_rows,
            progress=lambda done, total, _: progress.update(task, completed=done, total=total),
        )
        head, tail = _read(path, most_rows)
    except (CriteoFormatError, TrainingError) as fault:
        raise StudyError(str(fault)) from None
    batch = batch_size(len(tail))
    distinct = sum(np.unique(tail.keys[:, column]).size for column in range(tail.keys.shape[1]))
    log = Log(None if data is None else data.name, trained.rows, tail.labels, batch, distinct)
    means = {table.name: float(repository.open(MODEL).table(table.name).mean()) for table in entry(MODEL).tables}
    task = progress.add_task("serving the held-out rows", total=len(cases) + 1)
    exact, _ = _serve(repository, None, head, tail, batch)
    progress.advance(task)
    scored = []
    for case in cases:
        config = _config(case, means)
        warm = head if case.seen == 1.0 else _last(head, round(case.seen * len(head)))
        answer, whole = _serve(repository, config, warm, tail, len(tail) if case.at_once else batch)
        if not np.allclose(answer.scores[whole], exact.scores[whole], atol=_SAME_SCORE, rtol=_SAME_SCORE):
            raise RuntimeError(f"{case}: items that got all their rows have other scores")
        scored.append(answer)
        progress.advance(task)
    return log, exact, scored


def _read(path: Path, most_rows: int) -> tuple[_Rows, _Rows]:
    """The rows that were trained on, and the held-out ones."""
    file = CriteoFile(path, skip_bad_lines=True)
    total = file.count_rows(most_rows)
    start = held_out_start(total)
    return _rows(file, 0, start), _rows(file, start, total)


def _rows(file: CriteoFile, start: int, stop: int) -> _Rows:
    transform = CriteoTransform.for_model(entry(MODEL))
    labels, keys, dense = [], [], []
    for rows in file.batches(_READ_ROWS, start, stop):
        labels.append(rows.labels)
        keys.append(transform.keys(rows.categories))
        dense.append(transform.dense(rows.integers))
    return _Rows(np.concatenate(labels), np.concatenate(keys), np.concatenate(dense))


def _last(rows: _Rows, count: int) -> _Rows:
    first = len(rows) - count
    return _Rows(rows.labels[first:], rows.keys[first:], rows.dense[first:])


def _config(case: Case, means: Mapping[str, float]) -> HierarchyConfig:
    """A cache over a hash map that holds all rows, empty at first. One thread inserts, so that runs can be repeated."""
    cache = CacheConfig(
        cache_fraction=case.cache,
        hit_rate_threshold=case.threshold,
        default_value_for_each_table=_default_values(case.default, means),
        thread_pool_size=1,
        insertion_queue=_INSERTION_QUEUE,
        init_ec=False,
    )
    return HierarchyConfig(cache, VolatileConfig(VolatileType.HASH_MAP))


def _default_values(default: Default, means: Mapping[str, float]) -> dict[str, float]:
    return {table: default.value + default.of_mean * mean for table, mean in means.items()}


def _serve(
    repository: ModelRepository, config: HierarchyConfig | None, warm: _Rows, tail: _Rows, batch: int
) -> tuple[Scored, npt.NDArray[np.bool_]]:
    """The tail's scores in batches of `batch`, after the rows of `warm`; and which items got all their rows.

    What the cache lacks of a batch is in it before the next one. Without `config` all rows are in memory.
    """
    model = LoadedModel.load(repository.root, MODEL, options=LoadOptions(hierarchy=config))
    try:
        tiers = model.hierarchy.tiers
        if tiers is not None and len(warm):
            _warm_up(model, warm.keys)
        names = [feature.name for feature in model.spec.features]
        executor = model.new_executor(min(batch, len(tail)))
        scores, shares, asked, whole = [], [], [], []
        for first in range(0, len(tail), batch):
            part = slice(first, first + batch)
            before = None if tiers is None else tiers.state.counts
            columns = {name: np.ascontiguousarray(tail.keys[part, [n]]) for n, name in enumerate(names)}
            query = model.query(columns, tail.dense[part])
            outcome = executor.run(Batch(0, (SubQuery(query, 0, query.items),), query.items))
            scores.append(outcome.scores[:, 0].copy())
            report = outcome.lookup
            whole.append(np.ones(query.items, np.bool_) if report.by_item is None else report.by_item[:, 1] == 0)
            hits, misses = report.keys.total, 0
            if tiers is not None and before is not None:
                after = tiers.state.counts
                hits, misses = after.cache_hits - before.cache_hits, after.cache_misses - before.cache_misses
                tiers.background.drain()
            shares.append((hits / (hits + misses), 1 - report.keys.defaulted / report.keys.total))
            asked.append((report.keys.total, hits + misses))
        by_batch = np.array(shares)
        return Scored(np.concatenate(scores), by_batch[:, 0], by_batch[:, 1], np.array(asked)), np.concatenate(whole)
    finally:
        model.close()


def _warm_up(model: LoadedModel, keys: npt.NDArray[np.int64]) -> None:
    """Look `keys` `[n, 26]` up, each batch's rows in the cache before the next one."""
    hierarchy, tiers = model.hierarchy, model.hierarchy.tiers
    assert tiers is not None
    scratch = hierarchy.new_scratch(_WARM_UP_BATCH)
    out = np.empty((_WARM_UP_BATCH, model.spec.sparse_width), np.float32)
    for first in range(0, len(keys), _WARM_UP_BATCH):
        hierarchy.lookup(np.ascontiguousarray(keys[first : first + _WARM_UP_BATCH]), out, scratch)
        tiers.background.drain()
