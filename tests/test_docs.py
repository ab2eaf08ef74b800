"""The documentation: its links lead to files and headings that there are, its commands are those of `hebe`, and figures
that fall short are told.
"""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from hebe.cli.main import SUBCOMMANDS
from hebe.report.figures import Target
from tests.places import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_LINK = re.compile(r"""!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|(?:href|src|srcset)="([^"]+)\"""")
_CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`[^`\n]+`", re.S | re.M)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def links_of(text: str) -> list[str]:
    return [match[1] or match[2] for match in _LINK.finditer(_CODE.sub("", text))]


def anchors_of(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    anchors: set[str] = set()
    fence_free = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", text, flags=re.S | re.M)
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", fence_free, flags=re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(1 for known in anchors if re.fullmatch(re.escape(anchor) + r"(-\d+)?", known))
        anchors.add(f"{anchor}-{number}" if number else anchor)
    return anchors | set(re.findall(r'(?:id|name)="([^"]+)"', text))


def broken_links(path: Path, root: Path) -> list[str]:
    faults = []
    for link in links_of(path.read_text()):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        place, _, anchor = unquote(link).partition("#")
        target = (path.parent / place).resolve() if place else path
        if not target.exists():
            faults.append(f"{link}: there is no {place}")
        elif not target.is_relative_to(root):
            faults.append(f"{link}: leads out of the repository")
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text()):
            faults.append(f"{link}: {target.name} has no heading #{anchor}")
    return faults


def test_every_link_resolves():
    faults = [f"{path.relative_to(ROOT)}: {fault}" for path in DOCUMENTS for fault in broken_links(path, ROOT)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("[a](b.md) ![p](<b.md>) [x](https://example.org/none) [m](mailto:a@b)", 0),
        ("[a](c.md)", 1),
        ('<img src="none.svg">', 1),
        ("[a](b.md#two-words) [a](b.md#two-words-1)", 0),
        ("[a](b.md#three) [a](#nowhere)", 2),
        ("`[a](c.md)`\n```\n[a](c.md)\n```\n", 0),
        ("[up](..)", 1),
    ],
)
def test_the_link_check_itself(tmp_path, text, faults):
    (tmp_path / "b.md").write_text("# Two words\n\n## Two words\n")
    document = tmp_path / "a.md"
    document.write_text(text)
    assert len(broken_links(document, tmp_path)) == faults


def unknown_words(command_line: str) -> list[str]:
    """What `hebe` does not know of a command line without its "hebe": its subcommand, or options."""
    words = command_line.split()
    if words[0] not in SUBCOMMANDS:
        return words[:1]
    command = SUBCOMMANDS[words[0]].load(words[0])
    for word in words[1:]:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return sorted(set(_OPTION.findall(command_line)) - known - {"--help"})


def command_lines_of(text: str) -> list[str]:
    """In backticks, or in blocks of code, fenced or indented."""
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, flags=re.S | re.M))
    indented = "\n".join(re.findall(r"^ {4}(.*)", text, flags=re.M))
    blocks = re.findall(r"^(?:\$ )?hebe ([a-z].*)", f"{fenced}\n{indented}", flags=re.M)
    return [*blocks, *re.findall(r"`hebe ([a-z][^`\n]*)`", text)]


def test_every_command_line_is_one_of_hebes():
    lines = [(path, line) for path in DOCUMENTS for line in command_lines_of(path.read_text())]
    assert len(lines) > 50
    faults = [
        f"{path.relative_to(ROOT)}: hebe {line}: {words}" for path, line in lines if (words := unknown_words(line))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("`hebe serve models --http-port 1`", []),
        ("`hebe surve models`", ["surve"]),
        ("```sh\nmake\n$ hebe serve models --no-such --workers 1\n```\n", ["--no-such"]),
        ("a\n\n    hebe model new dlrm-rmc1 --rate 1 --size small\n", ["--rate"]),
        ("hebe surve --in plain words", []),
    ],
)
def test_the_check_of_command_lines_itself(text, unknown):
    assert [word for line in command_lines_of(text) for word in unknown_words(line)] == unknown


def test_a_figure_is_kept_once():
    """`hebe bench planning` runs studies too: what they measure is kept in their own files."""
    files: dict[str, list[str]] = {}
    for path in sorted((ROOT / "docs/figures").glob("*.json")):
        for figure in json.loads(path.read_text())["figures"]:
            files.setdefault(figure["name"], []).append(path.name)
    assert not {name: within for name, within in files.items() if len(within) > 1}


def test_what_is_missed_is_told():
    """Every figure that falls short of its target stands in docs/figures/README.md, with what it reached."""
    missed = {}
    for path in sorted((ROOT / "docs/figures").glob("*.json")):
        for figure in json.loads(path.read_text())["figures"]:
            if figure["target"] is not None and not Target.parse(figure["target"]).met_by(figure["value"]):
                missed[figure["name"]] = figure["value"]
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d.]+) \|", (ROOT / "docs/figures/README.md").read_text(), flags=re.M)
    told = {name: float(value) for name, value in rows}
    assert told == {name: pytest.approx(value, rel=0.01) for name, value in missed.items()}


QUOTED = {
    "docs/serving.md": {
        "throughput at saturation over the same worker": ("serve.over_inprocess.http", "serve.over_inprocess.grpc"),
        "added to p50 at concurrency 1": ("serve.overhead_p50_ms.http", "serve.overhead_p50_ms.grpc"),
        "resident size with two workers over one": ("serve.rss_two_workers",),
        "eager": ("execution.eager.one", "execution.eager.two_threads", "execution.eager.two_processes"),
        "scripted": ("execution.scripted.one", "execution.scripted.two_threads", "execution.scripted.two_processes"),
        "compiled": ("execution.compiled.one", "execution.compiled.two_threads"),
        "answers within the SLA over their peak": ("overload.goodput", "overload.goodput.dlrm-rmc1"),
        "the same in items": ("overload.goodput_items", "overload.goodput_items.dlrm-rmc1"),
        "share of the admitted": ("overload.attainment_of_admitted", "overload.attainment_of_admitted.dlrm-rmc1"),
        "memory after over memory before": ("overload.memory_growth", "overload.memory_growth.dlrm-rmc1"),
    },
    "docs/analytic-servers.md": {
        "peers-dlrm, 32 items, one worker": ("execution.scripted.one",),
        "the same, two threads": ("execution.scripted.two_threads",),
        "dlrm-rmc1, 256 items, one worker": ("serve.inprocess_qps",),
        "dlrm-rmc1, production sizes, saturated": ("overload.saturation_qps.dlrm-rmc1",),
        "mt-wnd at a tenth of its rows, production sizes, saturated": ("overload.saturation_qps",),
    },
    "docs/load.md": {
        "what one server worker takes": ("load.server_qps",),
        "HTTP sends, over that": ("load.generator_headroom",),
        "gRPC sends, over that": ("load.generator_headroom.grpc",),
    },
    "README.md": {
        f"{row} | {client}": tuple(f"peers.{name}.{client}.c{concurrency}" for concurrency in (1, 4, 16))
        for row, client, name in (
            ("**Hebe**, HTTP", "perf_analyzer", "hebe.http"),
            ("**Hebe**, gRPC", "perf_analyzer", "hebe.grpc"),
            ("**Hebe**, HTTP", "wrk", "hebe.http"),
            ("BentoML 1.4, raw bytes", "wrk", "bentoml.raw"),
            ("TorchServe 0.12, raw bytes", "wrk", "torchserve.raw"),
        )
    },
}
"""Tables of measured figures: how a row begins, and whose figures its cells quote, in order."""


TOLD = {
    "docs/studies.md": {
        r"a threshold of 0 or 0\.5 makes warm lookups ([\d.]+) or ([\d.]+) times as fast as 1": lambda of: (
            1 / of("hps.warmup.latency.rocksdb.threshold_0_over_1"),
            1 / of("hps.warmup.latency.rocksdb.threshold_half_over_1"),
        ),
        r"Over a hash map in the same memory there is a (tenth) to gain": lambda of: (
            1 - of("hps.warmup.latency.hash_map.threshold_0_over_1"),
        ),
        r"ours is ([\d.]+), between ([\d.]+) and ([\d.]+): whether more of Redis helps cannot be told": lambda of: (
            of("hps.fig10.more_redis.lookups"),
            of("hps.fig10.more_redis.lookups", "low"),
            of("hps.fig10.more_redis.lookups", "high"),
        ),
        r"RocksDB alone behind a cache of 10% is ([\d.]+) times as fast as with 45% in Redis": lambda of: (
            of("hps.fig10.over_table_memory.cache_10_rocksdb")
            / of("hps.fig10.over_table_memory.cache_10_redis_45_rocksdb"),
        ),
    },
}
"""Sentences that quote measured figures, and what their numbers are, by the figures of a name."""

WORDS = {"tenth": "0.1"}


def cells_of(text: str, start: str) -> list[str]:
    """What stands in the one row that starts so, behind the cell in which that ends."""
    (row,) = [line[2:] for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in row[len(start) :].split("|")[1:]]


def is_quote(cell: str, value: float) -> bool:
    """Whether the number in the cell is `value`, to as many digits as it has."""
    number = re.match(r"[\d,]+(?:\.(\d+))?", cell)
    return number is not None and float(number[0].replace(",", "")) == round(value, len(number[1] or ""))


def test_tables_of_measured_figures_quote_their_files():
    measured = {}
    for path in (ROOT / "docs/figures").glob("*.json"):
        measured |= {figure["name"]: figure["value"] for figure in json.loads(path.read_text())["figures"]}
    faults = [
        f"{path}: {start}: {cell} is not {name}, {measured[name]}"
        for path, rows in QUOTED.items()
        for start, names in rows.items()
        for cell, name in zip(cells_of((ROOT / path).read_text(), start)[: len(names)], names, strict=True)
        if not is_quote(cell, measured[name])
    ]
    assert not faults, "\n".join(faults)


def test_sentences_quote_measured_figures_as_their_files_have_them():
    measured = {}
    for path in (ROOT / "docs/figures").glob("*.json"):
        measured |= {figure["name"]: figure for figure in json.loads(path.read_text())["figures"]}
    faults = []
    for path, sentences in TOLD.items():
        text = " ".join((ROOT / path).read_text().split())
        for pattern, values in sentences.items():
            told = re.search(pattern, text)
            assert told is not None, f"{path}: has no sentence {pattern}"
            expected = values(lambda name, which="value": measured[name][which])
            for number, value in zip(told.groups(), expected, strict=True):
                if not is_quote(WORDS.get(number, number), value):
                    faults.append(f"{path}: {told[0]}: {number} is not {value}")
    assert not faults, "\n".join(faults)
