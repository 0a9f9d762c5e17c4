"""Scalings and class labels as plain data, for the header of a file."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.estimators.rows import Scaling

PLAIN = (bool, int, float, str, type(None))


def describe_scaling(scaling: Scaling) -> dict[str, list[float]]:
    """A scaling as plain data; floats survive JSON to the last bit."""
    return {"center": scaling.center.tolist(), "scale": scaling.scale.tolist()}


def rebuild_scaling(described: dict[str, Any], columns: int) -> Scaling:
    """The scaling that `describe_scaling` described, if it is of this many columns."""
    center = np.array(described["center"], dtype=np.float64)
    scale = np.array(described["scale"], dtype=np.float64)
    if center.shape != (columns,) or scale.shape != (columns,):
        raise ValueError(f"a scaling of {center.size} columns, {columns} were expected")
    return Scaling(center, scale)


def describe_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Class labels as plain data that keeps their type."""
    values = classes.tolist()
    if not all(isinstance(value, PLAIN) for value in values):
        raise ValueError(
            f"classes of type {type(values[0]).__name__} cannot be saved without pickle: "
            "use numbers, booleans or strings"
        )
    return {"dtype": classes.dtype.str if classes.dtype != object else "object", "values": values}


def rebuild_classes(described: dict[str, Any]) -> NDArray[Any]:
    """The array that `describe_classes` described."""
    dtype = np.dtype(described["dtype"])
    if dtype.kind not in "biufUO":
        raise ValueError(f"classes of dtype {dtype}")
    return np.array(described["values"], dtype=dtype)
