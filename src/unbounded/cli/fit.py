"""`unbounded fit`: from a table to a model file and a page that explains it."""

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbounded import atomic, interrupts, parallel
from unbounded.cli import common, outputs
from unbounded.cli.common import CommandError, Console
from unbounded.printing import one_line
from unbounded.tables import RULE, TASKS
from unbounded.tables.text import count_of, plain_number

if TYPE_CHECKING:
    from unbounded.tables import PreparedTable, TableModel

NAME = "fit"
HELP = "learn from a table"
TAKES_PROCESSES = True
DESCRIPTION = """\
Learn to predict one column of a table from the others, with a network whose depth is inferred.

Numbers, categories, yes/no, dates and missing values are understood, and of free text the words
that tell of the target; columns that carry nothing (all missing, one value, identifiers) are left
out and named. A share of the rows is held out: the scores on them stand beside those of a linear
model and of gradient boosting on the same split and encoding, and a line says which is best and
whether that is more than chance. What was learnt and how the columns were encoded go into one file.

Ctrl-C and SIGTERM end training early and keep the best epoch. If training diverges, or if the next
layers would not fit into memory, the best epoch before is kept, and a line says what to change."""
_RULE = "\n  ".join(textwrap.wrap(RULE + ".", 76))
EPILOG = f"""\
which task it is, unless --task says:
  {_RULE}

examples:
  unbounded fit train.csv --target price --out house.udn
  unbounded fit visits.parquet --target returned --task classification --category postcode \\
      --drop name --out visits.udn --report visits.html
  unbounded fit years/ --target price --time-limit 3600 --out house.udn
  xz -dc train.csv.xz | unbounded fit - --target price --out house.udn
  torchrun --nproc-per-node 4 -m unbounded fit train.csv --target price --out house.udn
"""
_SHOWN_COLUMNS = 40
_NO_REFIT = "--refit trains on all rows in memory: leave it out where rows stay on disk"
_LISTS = {
    "drop": "leave these out",
    "category": "take these as categories, also if they hold numbers",
    "keep": "use these also if they look like identifiers or free text",
}
_ESTIMATOR_OPTIONS = {
    "width": (common.positive, "of the hidden layers"),
    "epochs": (common.positive, "at most"),
    "patience": (common.positive, "stop after so many epochs without a better score"),
    "batch_size": (common.positive, "rows a step"),
    "lr": (common.rate, "learning rate"),
    "members": (common.positive, "of an ensemble"),
    "time_limit": (common.rate, "seconds of training, about"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded fit`."""
    parser.add_argument("table", type=Path, help=common.TABLE_HELP)
    parser.add_argument("--target", required=True, metavar="COLUMN", help="the column to predict")
    common.add_out_argument(parser, "the model file", required=True)
    parser.add_argument("--task", choices=TASKS, help="told from the target by default")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="the page (default: FILE of --out as .html)"
    )
    parser.add_argument("--no-report", action="store_true", help="write no page")
    group = parser.add_argument_group("the columns (names separated by commas, or repeated)")
    for name, text in _LISTS.items():
        common.add_list_argument(group, f"--{name}", text)
    text = "a text that stands for a missing value, besides empty fields, NA, NaN, null, ? …"
    common.add_list_argument(group, "--missing", text, "TEXT")
    group = parser.add_argument_group("the rows")
    text = "of the rows, to be scored on and never learnt from; 0 learns from all (default: 0.2)"
    group.add_argument("--held-out", type=common.share, default=0.2, metavar="SHARE", help=text)
    text = "use N rows, drawn at random"
    group.add_argument("--max-rows", type=common.row_count, metavar="N", help=text)
    text = (
        "learn from rows on disk rather than in memory (default: if there are more than 100 "
        "million cells)"
    )
    group.add_argument("--stream", action=argparse.BooleanOptionalAction, default=None, help=text)
    group = parser.add_argument_group("the network and its training")
    common.add_preset_argument(group)
    text = "a third of the steps, the usual ones, or more with five members (default: default)"
    group.add_argument("--quality", choices=("fast", "default", "best"), help=text)
    text = "members are networks of their own, or share one (default: deep)"
    group.add_argument("--ensemble", choices=("deep", "shared"), help=text)
    for name, (kind, words) in _ESTIMATOR_OPTIONS.items():
        text, option = f"{words} (default: the estimator's)", f"--{name.replace('_', '-')}"
        group.add_argument(option, type=kind, metavar="N", help=text)
    text = "once the best epoch is known, train anew on all rows up to it; takes twice the time"
    group.add_argument("--refit", action="store_true", default=None, help=text)
    text = (
        "after training, find in closed form what heads, columns and nearness to rows can still "
        "explain; the file may then hold up to 9,000 rows, scaled (default: yes)"
    )
    way = argparse.BooleanOptionalAction
    group.add_argument("--least-squares", action=way, default=None, help=text)
    group.add_argument(
        "--seed", type=common.not_negative, default=0, help="of split, weights and shuffling"
    )
    common.add_device_argument(group)
    group.add_argument("--no-references", action="store_true", help="fit the network alone")
    common.add_table_arguments(parser)
    common.add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Prepare the table, train, score and write, with words in between."""
    parallel.choose_gpu()
    processes = parallel.current()
    console = Console(options, processes.is_first)
    both = {"seed": options.seed, "progress": console.shows_progress}
    with processes.agreeing(CommandError):
        if processes.size > 1 and str(options.table) == "-":
            raise CommandError(
                "several processes cannot share standard input: write the table to a file"
            )
        if options.ensemble == "shared":
            _check_shared(options)
        if options.refit and options.stream:
            raise CommandError(_NO_REFIT)
        out, page = _outputs(options, processes.is_first)
        device = common.check_device(options.device)
        data = _prepare(options, both)
        if options.refit and data.on_disk is not None:
            raise CommandError(f"{_NO_REFIT} (--no-stream, or --max-rows)")
    console.say(_describe(data))
    for note in () if console.quiet else data.notes:  # the page has them as well
        console.warn(note)
    names = ("preset", "quality", "ensemble", "refit", "least_squares", *_ESTIMATOR_OPTIONS)
    given = {name: getattr(options, name) for name in names}
    given["n_members"] = given.pop("members")
    chosen = {name: value for name, value in given.items() if value is not None}
    # Whatever comes from here on, what was learnt is kept once an epoch is done.
    with interrupts.deferred() as request, common.told_warnings(console):
        model = _train(data, {"device": device, **chosen, **both})
        if not processes.is_first:
            return  # one scores and writes
        if atomic.is_file(out):  # a pipe would get it twice
            with interrupts.shielded():
                model.save(out)
        console.say(_depth(model.describe(), request.name))
        wanted = not options.no_references and not request.is_set()
        _score(model, data, wanted, page is not None, console)
        with interrupts.shielded():
            model.save(out)
            if page is not None:
                model.report(page)
            written = f"\npage:  {one_line(page)}" if page is not None else ""
            console.say(f"model: {one_line(out)}{written}")
            console.result({"model": out, "report": page, **model.describe()})


def _check_shared(options: argparse.Namespace) -> None:
    """Members that share a network have layers of their own, and cannot be any number."""
    from unbounded.likelihoods.members import MOST

    if options.preset not in (None, "tables"):
        raise CommandError("--ensemble shared has layers of its own: leave --preset at tables")
    if (options.members or 1) > MOST:
        raise CommandError(f"--members: at most {MOST} can share a network, got {options.members}")


def _prepare(options: argparse.Namespace, both: dict[str, Any]) -> "PreparedTable":
    from unbounded.tables import prepare

    table = common.open_table(options, options.missing)
    lists: dict[str, Any] = {name: common.column_names(options, name, table) for name in _LISTS}
    for name, names in lists.items():
        if options.target in names:
            raise CommandError(f"--{name} names the target, {options.target!r}: leave it out there")
    given = ("task", "held_out", "max_rows", "stream")
    split = {name: getattr(options, name) for name in given}
    return prepare(table, options.target, **split, **lists, **both)


def _train(data: "PreparedTable", options: dict[str, Any]) -> "TableModel":
    from unbounded.tables import TableModel
    from unbounded.training import NonFiniteError

    try:
        return TableModel.train(data, **options)
    except NonFiniteError as error:
        found = str(error).split(". ")[0]
        raise CommandError(
            f"training diverged, there is nothing to keep: lower --lr ({found})"
        ) from None


def _score(
    model: "TableModel",
    data: "PreparedTable",
    references: bool,
    importance: bool,
    console: Console,
) -> None:
    """Score the held-out rows; the model is whole without, so this may end at any time."""
    try:
        with interrupts.at_once():
            model.score_held_out(data, references=references, importance=importance)
    except KeyboardInterrupt:
        console.warn("the scores on held-out rows were left out (interrupted)")
    if "held_out" in model.info:
        if references and "references" not in model.info:
            console.warn("the references were left out (interrupted)")
        console.say(_scores(model))


def _outputs(options: argparse.Namespace, writes: bool) -> tuple[Path, Path | None]:
    if not writes:  # another process does
        return options.out, None
    out = outputs.check_output(options, options.out, outputs.MODEL, options.table)
    page: Path | None = options.report
    if options.no_report or (page is None and not atomic.is_file(out)):
        return out, None  # beside a device there is no place for a page
    page = page or out.with_suffix(".html")
    if outputs.same_place(page, out):
        raise CommandError(f"the model and the page cannot both be {out}: say --report FILE")
    return out, outputs.check_output(options, page, outputs.PAGE, options.table)


def _describe(data: "PreparedTable") -> str:
    """What was understood of the table."""
    target, encoding = data.target, data.encoding
    rows = encoding.columns[0].rows
    heading, *lines = common.column_rows(encoding, "missing", "values")
    if len(lines) > _SHOWN_COLUMNS:
        lines[_SHOWN_COLUMNS:] = [[f"  … {len(lines) - _SHOWN_COLUMNS} more", "", "", "", ""]]
    if target.is_classes:
        shown = ", ".join(map(one_line, target.classes[:6])) + (
            ", …" if len(target.classes) > 6 else ""
        )
        what = f"{len(target.classes)} classes ({shown})"
    else:
        low, high = (plain_number(float(end), 6) for end in data.bounds)
        what = f"a number, {low} … {high}"
    without = rows - data.num_rows
    left_out = f"; {count_of(without, 'row')} without it left out" if without else ""
    return (
        f"{one_line(data.table.label)}: {count_of(rows, 'row')}, "
        f"{count_of(len(data.table.names), 'column')}\n\n"
        + common.columns_of_text([heading, *lines], right=(2,))
        + f"\n\ntarget: {one_line(target.name)}, {what}{left_out}"
        f"\n{count_of(data.num_train, 'row')} to learn from, {len(data.held_out.y):,} held out; "
        f"{count_of(len(encoding.feature_names), 'number')} a row\n" + _on_disk(data)
    )


def _on_disk(data: "PreparedTable") -> str:
    """How a table that is not held in memory is learnt from."""
    if data.on_disk is None:
        return ""
    size = data.on_disk.bytes / 2**30
    return (
        f"from disk: {size:.3g} GiB of encoded rows in {data.on_disk.folder.parent}; scales and "
        f"categories by {len(data.train.y):,} of the rows\n"
    )


def _depth(described: dict[str, Any], request: str) -> str:
    """How training went, and q(ℓ) as bars."""
    from unbounded.report.terminal import depth_bars

    training, depth = described["training"], described["depth"]
    ends = {"interrupted": request, "diverged": "divergence", "memory": "a lack of memory"}
    stopped = training["stopped"]
    end = f" (ended by {ends[stopped]})" if stopped in ends else ""
    best = training["best_epoch"]
    kept = f"epoch {best} is kept"
    if training["refitted"]:
        kept = f"best on the validation share after {best}; then {best} anew on all rows"
    networks = training["networks"]
    of = f"the first of {networks} networks: " if networks > 1 else ""
    told = described["findings"]
    sentences = [told[name] for name in ("depth", "training", "rows") if name in told]
    return (
        f"{of}{count_of(training['epochs'], 'epoch')}{end}, {kept}; {training['seconds']:.1f} s\n\n"
        f"{depth_bars(depth['probs'].tolist())}\n\n"
        f"expected depth {depth['mean']:.2f}, at most {depth['max']}\n"
        + "".join(f"{one_line(sentence)}\n" for sentence in sentences)
    )


def _scores(model: "TableModel") -> str:
    """The scores on held-out rows beside those of the references, and what they come to."""
    from unbounded.tables.findings import findings

    held_out, references = model.info["held_out"], model.info.get("references", {})
    heading = f"on {count_of(held_out['rows'], 'held-out row')}"
    classes = model.target.is_classes
    table = common.score_table(held_out["scores"], references, classes, heading)
    told = findings(model)
    lines = [told[name] for name in ("verdict", "intervals", "uncertainty") if name in told]
    return "\n".join([table, *lines]) + "\n"
