"""What a model's file says of its training: plain data for people and pages, checked on reading."""

import math
from typing import Any

from unbounded.schema import (
    Check,
    FileError,
    anything,
    choice,
    list_of,
    mapping,
    optional,
    real,
    record,
    text,
    whole,
)
from unbounded.tables.target import TASKS, Target


def _number(value: Any, where: str) -> float:
    """A number; null stands for one that is not finite."""
    return math.nan if value is None else real()(value, where)


_SHARES, _NONE = (
    ("accuracy", "coverage_90"),
    (0.0, 0.0),
)  # scores that are shares, if they are there
_NUMBERS = list_of(_number)
_SCORES = mapping(_number)
_UNCERTAINTY = record(
    {
        **dict.fromkeys(("noise", "depth", "total"), _NUMBERS),
        **dict.fromkeys(("noise_mean", "depth_mean"), _number),
        "by_fifth": list_of(_number, most=5),
    },
    {
        "depth_share": _number,
        "by_fifth_bounds": list_of(list_of(_number, least=2, most=2), most=5),
    },
)
_CALIBRATION = record(
    {}, dict.fromkeys(("confidence", "accuracy", "count", "probability", "coverage"), _NUMBERS)
)
_IMPORTANCE = list_of(record({"column": text(), "loss": _number, "sd": _number}))
_EFFECTS = list_of(
    record(
        {
            **dict.fromkeys(("column", "kind", "finding"), text()),
            "shares": _NUMBERS,
            "curves": mapping(_NUMBERS),
        },
        {"places": _NUMBERS, "levels": list_of(text())},
    )
)
_HELD_OUT = record(
    {
        "task": choice(*TASKS),
        "depths": list_of(whole(1), least=1),
        "rows": whole(1),
        "scores": _SCORES,
        "depth_probs": list_of(_number, least=1),
        "by_depth": list_of(_number, least=1),
        "uncertainty": _UNCERTAINTY,
        "calibration": _CALIBRATION,
    },
    {
        "confusion": list_of(list_of(whole())),
        "predicted": record({"y": _NUMBERS, "mean": _NUMBERS}),
        "importance": optional(_IMPORTANCE),
        "effects": optional(_EFFECTS),
        "score_error": _number,
    },
    others=anything,
)
_INFO: dict[str, Check] = {
    "table": text(),
    "rows": whole(),
    "held_out_rows": whole(),
    "seed": optional(whole(-(2**63))),
    "held_out": _HELD_OUT,
    "references": mapping(_SCORES),
    "notes": list_of(text()),
}
check_info = record({}, _INFO, others=anything)
"""The check of `TableModel.info`; what somebody else has put there passes as it is."""


def check_held_out(found: dict[str, Any], target: Target) -> None:
    """A FileError if lists that belong together are of different lengths, or scores are missing."""
    count = len(target.classes)
    split, curve = found["uncertainty"], found["calibration"]
    scores: tuple[str, ...]
    axes: tuple[str, ...]
    if target.is_classes:
        scores, axes = ("accuracy", "log_score", "ece"), ("confidence", "accuracy", "count")
        confusion = found.get("confusion", [])
        fits = [len(confusion) == count, all(len(row) == count for row in confusion)]
    else:
        scores, axes = ("rmse", "coverage_90"), ("probability", "coverage")
        predicted = found.get("predicted", {"y": [], "mean": [0]})
        fits = [len(predicted["y"]) == len(predicted["mean"]), "confusion" not in found]
    fits += [
        found["task"] == target.task,
        all(name in found["scores"] for name in scores),
        not any(value < 0 or value > 1 for value in map(found["scores"].get, _SHARES, _NONE)),
        len({len(curve.get(name, "")) for name in axes}) == 1,
        all(name in curve for name in axes),
        len({len(split[name]) for name in ("noise", "depth", "total")}) == 1,
        len({len(found[name]) for name in ("depths", "by_depth", "depth_probs")}) == 1,
        len(split.get("by_fifth_bounds", split["by_fifth"])) == len(split["by_fifth"]),
        all(_fits(effect) for effect in found.get("effects") or ()),
    ]
    if not all(fits):
        raise FileError("the field extra.table.info.held_out does not fit together")


def _fits(effect: dict[str, Any]) -> bool:
    """Whether all lists about a column are of one length."""
    axis = effect.get("places", effect.get("levels", []))
    return {len(axis), len(effect["shares"]), *map(len, effect["curves"].values())} == {len(axis)}
