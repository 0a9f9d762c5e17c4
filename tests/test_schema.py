"""Plain data is checked field by field, and the error names the field."""

import pytest

from unbounded import schema
from unbounded.schema import FileError

POINT = schema.record({"x": schema.real(), "n": schema.whole(1, 9)}, {"note": schema.text(5)})


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"x": 1}, "n is missing"),
        ({"x": 1, "n": 0}, "point.n should be a whole number from 1 to 9"),
        ({"x": 1, "n": True}, "point.n"),
        ({"x": 1, "n": 2.0}, "point.n"),
        ({"x": float("nan"), "n": 2}, "point.x should be a finite number"),
        ({"x": 10**400, "n": 2}, "point.x"),
        ({"x": "1", "n": 2}, "point.x"),
        ({"x": 1, "n": 2, "note": "longer"}, "point.note"),
        ({"x": 1, "n": 2, "other": 3}, "point.other is not known"),
        ([1, 2], "point should be an object"),
        (None, "point should be an object"),
    ],
)
def test_a_wrong_field_is_named(value: object, named: str) -> None:
    with pytest.raises(FileError, match=named.replace(".", r"\.")):
        POINT(value, "point")


def test_what_fits_is_given_back() -> None:
    assert POINT({"x": 1.5, "n": 9, "note": "a"}, "point") == {"x": 1.5, "n": 9, "note": "a"}
    many = schema.list_of(schema.either(schema.whole(), schema.choice("auto", None)), most=3)
    assert many([1, "auto", None], "sizes") == [1, "auto", None]
    with pytest.raises(FileError, match=r"sizes\[1\]"):
        many([1, 1.5], "sizes")
    with pytest.raises(FileError, match="0 to 3 items"):
        many([1] * 4, "sizes")
    assert schema.mapping(schema.optional(schema.flag))({"a": None, "b": True}, "m") == {
        "a": None,
        "b": True,
    }
