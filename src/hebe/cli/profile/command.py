"""`hebe profile`: the best way to run a model on this server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hebe.cli.profile.checks import (
    check_accelerator,
    check_arrivals,
    check_hot_rows,
    check_no_strange_picture,
    check_placements,
    chosen_keys,
    chosen_strategy,
    parse_batch_sizes,
    parse_cores,
    parse_placements,
    stated_power,
)
from hebe.cli.terminal.options import (
    MEASURE,
    QUERIES,
    SIZE_FORMS,
    ArrivalsOption,
    GraphOption,
    HierarchyOption,
    PersistentDirOption,
    QuerySeedOption,
    RowFormatOption,
    TableMemoryOption,
    check_at_least,
    check_percentile,
    check_written,
    load_options,
    parse_bytes,
    parse_form,
)
from hebe.cli.terminal.output import (
    JsonOption,
    check_result_file,
    draw_result,
    make_console,
    make_progress,
    print_error,
    print_json,
    show,
)
from hebe.server_configuration import AcceleratorChoice

if TYPE_CHECKING:
    from hebe.profiling.search import ProfileInterrupted

_SEARCH, _RESULT = "What to search", "Result"
_OUT_OF_REACH = 3
_PATIENCE_S = 300.0


def profile(
    directory: Annotated[Path, typer.Argument(metavar="REPO", help="The model repository.")],
    model: Annotated[str, typer.Option(help="The model to profile.")],
    version: Annotated[int | None, typer.Option(min=1, help="Its version (default: the latest).")] = None,
    sla_ms: Annotated[
        float | None,
        typer.Option(rich_help_panel=MEASURE, help="Latency bound in milliseconds (default: the model's)."),
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(rich_help_panel=MEASURE, help="Percentile at which it must hold (default: the model's)."),
    ] = None,
    power_budget_w: Annotated[
        float | None, typer.Option(rich_help_panel=MEASURE, help="Most power that the server may draw, in watts.")
    ] = None,
    idle_power_w: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=MEASURE,
            help="What this server draws when idle, in watts, to estimate from where no meter can be read (default: a"
            " guess from cores and memory).",
        ),
    ] = None,
    peak_power_w: Annotated[
        float | None, typer.Option(rich_help_panel=MEASURE, help="The same at full load; give both.")
    ] = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_SEARCH,
            help="What may run where; give it once for each: model-on-host, pipeline-on-host, sparse-on-host,"
            " hot-sparse-on-accelerator (default: the first two).",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SEARCH,
            help="guided: measures only what a simulation from measured service times says may win; hercules: Algorithm"
            " 1, refined; algorithm-1: that as it is published; the baselines deeprecsys (batch sizes only) and baymax"
            " (co-location only); exhaustive (every lane alone); random (default: guided, with a placement on an"
            " accelerator hercules).",
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SEARCH, metavar="ITEMS,ITEMS,...", help="Batch sizes to try (default: 16 to 1024)."
        ),
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SEARCH, metavar="LIST", help="Cores to use, such as 0-3,8 (default: all there are)."
        ),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=_SEARCH, help="How many the random search tries (default: a fifth)."),
    ] = None,
    sizes: Annotated[str, typer.Option(rich_help_panel=QUERIES, help=SIZE_FORMS)] = "production",
    arrivals: ArrivalsOption = "poisson",
    keys: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=QUERIES,
            help="Which rows: uniform, zipf:ALPHA, or reuse[:FILE[:NAME]] (default: uniform; with"
            " hot-sparse-on-accelerator reuse).",
        ),
    ] = None,
    seed: QuerySeedOption = 0,
    graph: GraphOption = "scripted",
    table_memory: TableMemoryOption = None,
    persistent_dir: PersistentDirOption = None,
    hierarchy: HierarchyOption = None,
    row_format: RowFormatOption = "fp32",
    accelerator: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SEARCH,
            help="Where sparse-on-host and hot-sparse-on-accelerator run DenseNets: auto (a GPU if there is one, else a"
            " second CPU device), cuda, cpu (default: auto).",
        ),
    ] = None,
    accelerator_memory: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SEARCH,
            metavar="BYTES",
            help="The accelerator's memory for hot rows, such as 500M, with hot-sparse-on-accelerator (default: 80% of"
            " a GPU's; of a second CPU device a tenth of the tables).",
        ),
    ] = None,
    key_trace: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_SEARCH,
            metavar="FILE",
            help="Recorded keys (safetensors, int64 by table) that say which rows are hot (default: by --keys).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULT,
            metavar="FILE",
            help="The profile, .json; a picture of the search goes beside it (default: profiles/MODEL.json).",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            rich_help_panel=_RESULT,
            help="Overwrite also a profile of another server or model version, or a file that is no profile.",
        ),
    ] = False,
    journal: Annotated[
        Path, typer.Option(rich_help_panel=_RESULT, metavar="DIR", help="Where every evaluation is kept as it comes.")
    ] = Path("profiles/journal"),
    fresh: Annotated[
        bool, typer.Option("--fresh", rich_help_panel=_RESULT, help="Measure anew what the journal knows.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", rich_help_panel=MEASURE, help="Shorter measurements, for a first look.")
    ] = False,
    patience_s: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=MEASURE,
            metavar="SECONDS",
            help="How long in all to wait while others disturb the machine, and to measure anew what they disturbed "
            "(default: 300, with --quick 0).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best way to run a model on this server: how many workers, how many cores each, which batch size.

    Starts the model, loads it in one configuration after another, and finds for each the highest rate at which the SLA
    still holds. Leave the machine alone meanwhile. What wins is written to a profile, which hebe serve --profile
    starts with. A profile of the same model version on the same kind of server takes the place of an older one; nothing
    else is overwritten without --replace.

    Ctrl-C loses nothing: every evaluation is in the journal, and the same command goes on from there. What was measured
    of the same model files, loaded in the same way, server, SLA and load is not measured again.

    Exit codes: 0 a profile and its picture were written; 3 no configuration keeps the SLA (and the power budget): the
    closest one is told, and nothing is written; 1 it failed; 2 wrong usage; 130 interrupted, 143 terminated.

    Example: hebe profile models --model dlrm-rmc1 --sla-ms 20

    Example: hebe profile models --model din --power-budget-w 90 --placement model-on-host --strategy deeprecsys
    """
    from hebe.workload import forms

    for option, value in (("--sla-ms", sla_ms), ("--power-budget-w", power_budget_w)):
        if value is not None:
            check_at_least(option, value, more_than=0.0)
    if patience_s is not None:
        check_at_least("--patience-s", patience_s, least=0.0)
    if percentile is not None:
        check_percentile(percentile)
    check_at_least("--seed", seed, least=0)
    power_watts = stated_power(idle_power_w, peak_power_w)
    placements = parse_placements(placement or [])
    strategy = chosen_strategy(strategy, placements)
    check_placements(strategy, placements)
    check_accelerator(strategy, placements, accelerator)
    check_hot_rows(strategy, placements, accelerator_memory, key_trace)
    keys = chosen_keys(keys, strategy, placements)
    if evaluations is not None and strategy != "random":
        raise typer.BadParameter("is for --strategy random", param_hint="--evaluations")
    output = Path("profiles") / f"{model}.json" if output is None else output
    if output.suffix != ".json":
        raise typer.BadParameter(f"{output}: must end in .json", param_hint="--output")
    picture = output.with_suffix(".svg")
    check_written({"--output": output, "--journal": journal}, [])
    for file in (output, picture):
        check_result_file("--output", file)
    if not replace:
        check_no_strange_picture(picture, output)
    query_sizes, key_skew = parse_form("--sizes", forms.query_sizes, sizes), parse_form("--keys", forms.key_skew, keys)
    batches, usable = parse_batch_sizes(batch_sizes, query_sizes.largest), parse_cores(cores)
    arriving = parse_form("--arrivals", forms.arrivals, arrivals)
    check_arrivals(arrivals, arriving, quick=quick)
    hot_bytes = None if accelerator_memory is None else parse_bytes(accelerator_memory, "--accelerator-memory")

    # What runs models takes seconds to import: not before it is known that there is something to do.
    from hebe.load_generator.search.qps_search import Workload
    from hebe.machine.process_limits import keep_large_allocations
    from hebe.profiling.files.profiled_model import form_words
    from hebe.profiling.search import ProfileInterrupted, ProfileRequest, make_profile

    keep_large_allocations()
    request = ProfileRequest(
        directory=directory,
        model=model,
        version=version,
        loading=load_options(graph, table_memory, persistent_dir, hierarchy, row_format),
        workload=Workload(query_sizes, arriving, key_skew, seed),
        keys=keys,
        load=f"sizes {sizes}, arrivals {form_words(arrivals)}, keys {form_words(keys)}, seed {seed}"
        f"{', quick' if quick else ''}",
        sla_ms=sla_ms,
        percentile=percentile,
        power_budget_watts=float("inf") if power_budget_w is None else power_budget_w,
        placements=placements,
        strategy=strategy,
        seed=seed,
        evaluations=evaluations,
        batch_sizes=batches,
        cores=usable,
        accelerator_bytes=hot_bytes,
        key_trace=key_trace,
        journal=journal,
        fresh=fresh,
        quick=quick,
        patience_s=patience_s if patience_s is not None else 0.0 if quick else _PATIENCE_S,
        output=output,
        replaces=replace,
        accelerator=AcceleratorChoice(accelerator or AcceleratorChoice.AUTO),
        power_watts=power_watts,
    )
    console = make_console(as_json)
    try:
        with make_progress() as progress:
            made = make_profile(request, progress)
    except ProfileInterrupted as interrupted:
        console.print(_interrupted_words(interrupted), soft_wrap=True, markup=False)
        if as_json:
            told = {"evaluations": interrupted.evaluations, "measurements": interrupted.kept, "journal": journal}
            print_json({"interrupted": True, **told})
        raise typer.Exit(interrupted.exit_code) from None
    # Tables are drawn with rich, the picture with matplotlib: not before all is measured.
    from hebe.cli.profile.results import document
    from hebe.profile import ProfileError
    from hebe.profiling.files.server_profile import check_replaceable, core_list, write_server_profile
    from hebe.report.html import write_picture

    unwritten: Exception | None = None
    if made.profile is not None:
        try:  # before anything is printed, which may fail as well: neither takes the other with it
            if not replace:
                check_replaceable(output, made.subject)  # somebody else may have written it since
            write_server_profile(output, made.profile)
        except (ProfileError, OSError) as fault:
            unwritten = fault
    shown = document(made)
    show(console, shown.blocks)
    if made.profile is None:
        if as_json:
            print_json({**shown.data, "profile": None})
        raise typer.Exit(_OUT_OF_REACH)
    if unwritten is not None:
        raise unwritten
    picture_error = draw_result(picture, partial(write_picture, shown))
    console.print(f"\nProfile: {output}", soft_wrap=True, markup=False)
    if not picture_error:
        console.print(f"Picture: {picture}", soft_wrap=True, markup=False)
    if made.profile.cores is not None:
        console.print(
            f"Of these cores: to serve by it, put taskset -c {core_list(made.profile.cores)} in front of hebe serve.",
            soft_wrap=True,
        )
    if as_json:
        failed = {"picture_error": picture_error} if picture_error else {}
        print_json({**shown.data, "profile": output, "picture": picture, **failed})
    if picture_error:
        print_error(f"the picture is not written: {picture_error}")
        raise typer.Exit(1)


def _interrupted_words(interrupted: ProfileInterrupted) -> str:
    from hebe.report.configuration_words import configuration_words

    if not interrupted.kept:
        return f"{interrupted.how} before anything was measured."
    words = f"{interrupted.how}. {interrupted.goes_on}"
    if interrupted.best is not None:
        configuration, reached = interrupted.best
        words += f" Best so far: {reached.qps:,.4g} queries/s with {configuration_words(configuration)}."
    return words
