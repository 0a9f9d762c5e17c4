"""`unbounded export`: a model as one file for other programs."""

import argparse
from pathlib import Path
from typing import Any

from unbounded.cli import common, outputs
from unbounded.cli.common import CommandError, Console
from unbounded.printing import one_line
from unbounded.tables.text import count_of

NAME = "export"
HELP = "write a model for other programs"
DESCRIPTION = """\
Write a model as one file that other programs run without this library: ONNX (onnxruntime and
others; needs the extra unbounded[export]), or pt2, what torch.export.load reads.

The preprocessing of a table is inside: ONNX takes each column as an input of its name, numbers as
they are (NaN where they are missing), yes/no as 1 and 0, dates as seconds since 1970 in UTC,
categories as texts. Outputs are named: probabilities and prediction, or mean, sd and quantiles. Any
number of rows. Before the file is kept it is read again and compared with our own predictions, to
1e-5."""
EPILOG = """\
examples:
  unbounded export house.udn --to onnx               # writes house.onnx
  unbounded export house.udn --table test.csv --quantiles 0.1,0.9 --out house.onnx
  unbounded export images.udn --shape 3,32,32 --out images.pt2
"""

_FORMATS = ("onnx", "pt2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded export`."""
    parser.add_argument("model", type=Path, help="a model file")
    words = "what to write (default: by the ending of --out)"
    parser.add_argument("--to", choices=_FORMATS, help=words)
    common.add_out_argument(parser, "the file (default: the model's name, ending as --to says)")
    words = "rows to compare with (default: made up from what training saw)"
    parser.add_argument("--table", type=Path, metavar="TABLE", help=words)
    words = "of numbers (default: 0.05,0.5,0.95; none leaves them out)"
    parser.add_argument("--quantiles", type=_quantiles, default=(0.05, 0.5, 0.95), help=words)
    words = "of one input, where the network does not tell: 3,32,32 for images"
    parser.add_argument("--shape", type=_shape, metavar="SIZES", help=words)
    common.add_table_arguments(parser)
    common.add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Load, export, tell what goes in and comes out."""
    from unbounded.exporting import ExportError, export

    _complete(options)
    console = Console(options)
    outputs.check_output(options, options.out, outputs.EXPORT, options.model, options.table)
    model = _model(options.model)
    try:
        example = _example(options, model)
        chosen: dict[str, Any] = {"to": options.to, "quantiles": options.quantiles}
        done = export(model, options.out, example, **chosen)
    except ExportError as error:
        raise CommandError(str(error)) from None
    rows = [["  input", "what is expected"]]
    rows += [[f"  {one['name']}", one["expects"]] for one in done.inputs]
    console.say(common.columns_of_text(rows))
    console.say(f"  outputs: {', '.join(done.outputs)}")
    console.say(
        f"\n{done.format} file: {one_line(done.path)}; the largest difference from our own "
        f"predictions is {done.difference:.1e}, on {count_of(done.rows, 'row')}"
    )
    console.result(
        {
            "out": done.path,
            "format": done.format,
            "inputs": done.inputs,
            "outputs": done.outputs,
            "rows": done.rows,
            "difference": done.difference,
        }
    )


def _complete(options: argparse.Namespace) -> None:
    """`--to` from the ending of `--out`, or `--out` from the model's name; both must agree."""
    if options.out is None:
        if options.to is None:
            raise CommandError("say --to onnx or --to pt2, or the file: --out FILE")
        options.out = options.model.with_suffix(f".{options.to}")
    ending = options.out.suffix.lower().removeprefix(".")
    if options.to is None and ending not in _FORMATS:
        raise CommandError(
            f"a model is exported to onnx or pt2, got {ending!r}: say --to onnx or --to pt2"
        )
    if ending in _FORMATS and options.to not in (None, ending):
        raise CommandError(
            f"--out {one_line(options.out)} ends as {ending} and --to says {options.to}: "
            "change one of the two"
        )


def _model(path: Path) -> Any:
    """What a file holds: a table's model, an estimator or a network."""
    from unbounded.estimators import files as estimator_files
    from unbounded.files import load, read
    from unbounded.tables import TableModel

    contents = read(path)
    if "table" in contents.extra:
        return TableModel.load(contents, "cpu")
    if estimator_files.holds_estimator(contents):
        return estimator_files.load(contents, device="cpu")
    return load(contents)


def _example(options: argparse.Namespace, model: Any) -> Any:
    from unbounded.exporting.programs import made_up_inputs
    from unbounded.model import UDN
    from unbounded.tables import TableModel

    if isinstance(model, UDN):
        if options.table is not None:
            raise CommandError("--table is for models of tables: give the --shape of an input")
        return made_up_inputs(model.layers, options.shape)
    if options.shape is not None:
        raise CommandError("--shape is for networks alone: this model knows its columns")
    if options.table is None:
        return None
    if not isinstance(model, TableModel):
        raise CommandError("--table is for models that `unbounded fit` wrote: leave it out")
    return common.open_table(options, model.encoding.missing)


def _quantiles(text: str) -> tuple[float, ...]:
    if text == "none":
        return ()
    levels = tuple(common.share(part.strip()) for part in text.split(","))
    if not all(levels):
        raise argparse.ArgumentTypeError(f"numbers between 0 and 1 were expected, got {text!r}")
    return levels


def _shape(text: str) -> tuple[int, ...]:
    return tuple(common.positive(part.strip()) for part in text.split(","))
