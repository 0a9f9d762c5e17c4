"""`python -m benchmarks.collect`: the tables of several kinds, from clones of public repositories.

    git clone https://github.com/renatopp/arff-datasets
    git clone https://github.com/mwaskom/seaborn-data
    python -m benchmarks.collect --arff arff-datasets --seaborn seaborn-data --adult adult.test \\
        --out tables --development development

Writes NAME.csv files with the target in the last column, as `python -m benchmarks.tables --tables`
reads them. --adult is the file adult.test of UCI's adult. With --development, further sets of
UCI's, which choices may be made on, go to a folder of their own.
"""

import argparse
import csv
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

_ADULT = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex "
    "capital_gain capital_loss hours_per_week native_country income"
)
_ARFF = {
    "breast.cancer": "breastc",
    "credit.g": "credit-g",
    "hypothyroid": "hypothyroid",
    "segment": "segment",
    "vote": "vote",
}
DEVELOPMENT = (
    *("anneal", "autos", "balance.scale", "car", "cmc", "credit.a", "cylinder.bands", "diabetes"),
    *("glass", "heart.c", "ionosphere", "sick", "sonar", "soybean", "tic-tac-toe", "vehicle"),
    "vowel",
)
"""Sets that no result is of; recipes may be chosen on them."""
_DIAMONDS, _ADULTS, _HORSES = 6000, 8000, 300  # rows


def read_arff(path: Path) -> pd.DataFrame:
    """A frame; the last attribute stays last. A question mark is a gap."""
    names: list[str] = []
    rows: list[list[str]] = []
    is_data = False
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.strip()
        if not text or text.startswith("%"):
            continue
        if is_data:
            found = next(csv.reader([text], quotechar="'", escapechar="\\", skipinitialspace=True))
            rows.append([cell.strip() for cell in found])
            continue
        is_data = text.lower().startswith("@data")
        attribute = re.match(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+", text, re.IGNORECASE)
        if attribute:
            names.append(attribute[1].strip("'\""))
    frame = pd.DataFrame(rows, columns=names).replace("?", np.nan)
    for name in names:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if numbers.notna().sum() == frame[name].notna().sum():
            frame[name] = numbers
    return frame.dropna(axis="columns", how="all")


def _last(frame: pd.DataFrame, target: str, without: tuple[str, ...] = ()) -> pd.DataFrame:
    """With the target behind all others, as text."""
    others = [name for name in frame.columns if name not in (target, *without)]
    return frame[[*others, target]]


def from_arff(folder: Path) -> dict[str, pd.DataFrame]:
    """Six sets of UCI's. Of horse colic the rows of the training file."""
    found = {name: read_arff(folder / f"{file}.arff") for file, name in _ARFF.items()}
    horse = read_arff(folder / "colic.orig.arff").iloc[:_HORSES]
    outcome = horse["outcome"].astype(float).map({1: "lived", 2: "died", 3: "euthanized"})
    return found | {"horse": _last(horse.assign(outcome=outcome), "outcome")}


def from_seaborn(folder: Path) -> dict[str, pd.DataFrame]:
    """Five tables that seaborn's examples are made with."""

    def read(name: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{name}.csv")

    diamonds = read("diamonds")
    told = ("survived", "class", "who", "adult_male", "embark_town", "alone")
    return {
        "diamonds": _last(diamonds.sample(_DIAMONDS, random_state=0), "cut"),
        "mpg": _last(read("mpg"), "origin"),
        "penguins": _last(read("penguins"), "species"),
        "taxis": _last(read("taxis"), "payment", ("tip", "total")),
        "titanic": _last(read("titanic"), "alive", told),
    }


def from_adult(path: Path) -> dict[str, pd.DataFrame]:
    """Some rows of adult's test file."""
    frame = pd.read_csv(
        path, names=_ADULT.split(), na_values="?", comment="|", skipinitialspace=True
    )
    frame["income"] = frame["income"].str.rstrip(".")
    return {"adult": frame.sample(_ADULTS, random_state=0)}


def write(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        print(f"{folder / name}.csv: {len(frame):,} rows, {frame.shape[1] - 1} columns")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collect", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--arff", type=Path, help="a clone of renatopp/arff-datasets")
    parser.add_argument("--seaborn", type=Path, help="a clone of mwaskom/seaborn-data")
    parser.add_argument("--adult", type=Path, help="the file adult.test")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--development", type=Path, help="folder for sets to choose recipes on")
    options = parser.parse_args()
    if options.development and not options.arff:
        parser.error("--development needs --arff")
    sources = {from_arff: options.arff and options.arff / "classification"}
    sources |= {from_seaborn: options.seaborn, from_adult: options.adult}
    for read, path in sources.items():
        if path:
            write(read(path), options.out)
    if options.development:
        folder = options.arff / "classification"
        write({n: read_arff(folder / f"{n}.arff") for n in DEVELOPMENT}, options.development)
    return 0


if __name__ == "__main__":
    sys.exit(main())
