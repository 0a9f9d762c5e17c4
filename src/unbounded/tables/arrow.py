"""Columns of Arrow as pandas columns of numbers, booleans, text and dates, and back."""

from typing import Any

from unbounded.tables import lines
from unbounded.tables.text import TableError, is_broken

NO_VALUE = "…"  # what stands for a value that is neither number nor text nor date


def pandas() -> Any:
    """The package pandas, or an error that says how to get it."""
    try:
        import pandas as module
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise TableError(
            f"tables need the package {error.name}: pip install 'unbounded[tables]'"
        ) from None
    return module


def frame_to_arrow(frame: Any) -> Any:
    """The rows of a pandas or polars frame as an Arrow table; mixed values become texts."""
    import pyarrow

    pd = pandas()
    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow()
    if not isinstance(frame, pd.DataFrame):
        raise TableError(
            "a table is a path or a pandas or polars frame, "
            f"got a value of type {type(frame).__name__}"
        )
    columns = []
    for place in range(frame.shape[1]):
        series = frame.iloc[:, place]
        try:
            columns.append(pyarrow.Array.from_pandas(series))
        except UnicodeEncodeError as error:
            row = next(i for i, value in enumerate(series.tolist()) if is_broken(value))
            raise TableError(
                f"column {str(frame.columns[place])!r} holds a text in row {row + 1} that cannot "
                f"be written out ({error.reason})"
            ) from None
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):  # mixed values
            texts = series.map(str, na_action="ignore")
            columns.append(pyarrow.Array.from_pandas(texts, type=pyarrow.string()))
    names = [str(name).strip() for name in frame.columns]
    return pyarrow.Table.from_arrays(columns, names=names)


def from_arrow(batch: Any) -> Any:
    """A pandas frame of numbers, booleans, text and dates; what is none of these is NO_VALUE."""
    import pyarrow
    from pyarrow import compute, types

    pd = pandas()
    # pandas' own type of text from version 3, strings in Arrow's layout before.
    text = "str" if int(pd.__version__.split(".")[0]) >= 3 else "string"
    texts = text_types()
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if types.is_dictionary(column.type):
            check_size(name, column)
            column = column.cast(column.type.value_type)
        kind = column.type
        if types.is_boolean(kind):
            series = column.to_pandas().astype("boolean")
        elif types.is_decimal(kind):
            series = _decimal_texts(column).astype(text)
        elif types.is_integer(kind) and kind.bit_width == 64:  # more digits than a double has
            whole = "UInt64" if types.is_unsigned_integer(kind) else "Int64"
            series = pd.Series(pd.array(column.to_pandas(integer_object_nulls=True), dtype=whole))
        elif types.is_integer(kind) or types.is_floating(kind):
            series = column.cast(pyarrow.float64(), safe=False).to_pandas()
        elif types.is_duration(kind) or types.is_time(kind):
            unit = pyarrow.duration("ns") if types.is_duration(kind) else pyarrow.time64("ns")
            if types.is_duration(kind) and kind.unit != "ns":  # its range is the larger one
                unit = pyarrow.duration("us")
            ticks = column.cast(unit, safe=False).cast(pyarrow.int64())
            series = ticks.cast(pyarrow.float64(), safe=False).to_pandas()
            series = series / 1000 if unit.unit == "ns" else series  # microseconds
        elif types.is_date(kind):
            series = column.cast(pyarrow.date32()).cast(pyarrow.string()).to_pandas().astype(text)
        elif types.is_timestamp(kind):
            unit = "ns" if kind.unit == "ns" else "us"
            series = column.cast(pyarrow.timestamp(unit), safe=False).to_pandas()
        elif kind in texts or types.is_null(kind):
            series = column.cast(pyarrow.string()).to_pandas().astype(text)
        else:  # nested or binary: there, or missing
            there = compute.if_else(compute.is_valid(column), NO_VALUE, None)
            series = there.cast(pyarrow.string()).to_pandas().astype(text)
        columns[name] = series.set_axis(range(len(series)))
    return pd.DataFrame(columns)


def text_types() -> tuple[Any, ...]:
    """Arrow's types of text."""
    import pyarrow

    return (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())


def check_size(name: str, column: Any) -> None:
    """An error if the texts of a chunk, coded as a dictionary, are too large when written out."""
    from pyarrow import compute

    if column.type.value_type not in text_types():
        return
    lengths = compute.binary_length(column.dictionary)
    size = compute.sum(lengths.take(column.indices)).as_py() or 0
    if size > lines.MAX_UNPACKED:
        raise TableError(
            f"column {name!r} holds {size / 2**30:.3g} GiB of text in {len(column):,} rows: "
            "leave it out of the file"
        )


def _decimal_texts(column: Any) -> Any:
    """Decimals with all the digits of their type: 1.10 in a column of two places."""
    coded = column.dictionary_encode()
    texts = [format(value, "f") for value in coded.dictionary.to_pylist()]
    codes = coded.indices.to_pandas().astype("Int64")
    return codes.map(dict(enumerate(texts)), na_action="ignore")


def arrow_texts(series: Any) -> Any:
    """A column of texts as one Arrow array."""
    import pyarrow

    texts = pyarrow.array(series, pyarrow.string(), from_pandas=True)
    return texts.combine_chunks() if isinstance(texts, pyarrow.ChunkedArray) else texts


def is_text(series: Any) -> bool:
    """Whether a column holds text."""
    return bool(pandas().api.types.is_string_dtype(series.dtype))
