"""Terminal bars, charts, the page: values, structure, escaping."""

import base64
import io
import math
import os
import re
import struct
import zlib
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unbounded as ub
from unbounded.report import axes, maps, page, png, sections, svg
from unbounded.report.lines import thin
from unbounded.report.terminal import depth_bars, show, shown_range
from unbounded.training import History

HOSTILE = "<script>alert('\"&\x00\x1b')</script>"


def parse(figure: str) -> ElementTree.Element:
    """The figure as XML; raises if it is not well-formed."""
    return ElementTree.fromstring(figure)


def drawing(figure: str) -> ElementTree.Element:
    found = parse(figure).find("svg")
    assert found is not None
    return found


def of_class(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [e for e in element.iter() if name in e.get("class", "").split()]


def attributes(elements: list[ElementTree.Element], name: str) -> np.ndarray:
    return np.array([float(e.get(name, "nan")) for e in elements])


def corners(path: str) -> np.ndarray:
    """The points of a path of M and L commands, `(points, 2)`."""
    return np.array([[float(v) for v in p.split()] for p in re.split("[ML]", path)[1:]])


def poisson(rate: float, count: int) -> list[float]:
    logs = [k * math.log(rate) - rate - math.lgamma(k + 1) for k in range(count)]
    values = np.exp(logs)
    return (values / values.sum()).tolist()


# --- terminal -----------------------------------------------------------------------------------


def test_depth_bars_show_depth_probability_and_proportional_bars() -> None:
    lines = depth_bars([0.25, 0.5, 0.25], first_depth=3, width=8).splitlines()
    assert lines[1:] == ["    3  0.250  ████", "    4  0.500  ████████", "    5  0.250  ████"]


def test_bars_are_drawn_to_an_eighth_and_never_vanish() -> None:
    lines = depth_bars([0.8, 0.1, 1e-6, 0.0], width=10).splitlines()[1:]
    bars = [line[len("    1  0.800") :].strip() for line in lines]
    assert bars == ["█" * 10, "█▎", "▏", ""]


@pytest.mark.parametrize("rate", [200.0, 2000.0])
def test_long_posteriors_are_cut_to_where_the_mass_is(rate: float) -> None:
    probs = poisson(rate, int(rate + 6 * math.sqrt(rate)))
    text = depth_bars(probs)
    *rows, note = text.splitlines()[1:]
    assert 10 < len(rows) <= 24
    shown = [float(row.split()[1]) for row in rows]
    assert sum(shown) == pytest.approx(1, abs=0.02)
    first, last = rows[0].split()[0].split("–")[0], rows[-1].split()[0].split("–")[-1]
    hidden = sum(probs[: int(first) - 1]) + sum(probs[int(last) :])
    assert 0 < hidden <= 2e-3
    assert f"{len(probs) - (int(last) - int(first) + 1)} of the depths" in note
    assert f"{hidden:.1e}" in note


def test_short_posteriors_are_shown_whole() -> None:
    probs = [1 - 1e-12, *[1e-13] * 9]
    assert shown_range(probs, 24) == (0, 10)
    assert len(depth_bars(probs).splitlines()) == 11


@pytest.mark.parametrize("probs", [[], [math.nan, 1.0], [-0.1, 1.1]])
def test_what_is_no_distribution_is_refused(probs: list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        depth_bars(probs)


def test_bars_reach_a_terminal_without_unicode() -> None:
    raw = io.BytesIO()
    terminal = io.TextIOWrapper(raw, encoding="ascii")
    show(depth_bars([0.3, 0.7], width=10), terminal)
    assert b"2  0.700  ##########" in raw.getvalue()


# --- axes ---------------------------------------------------------------------------------------


@given(
    st.floats(-1e9, 1e9).map(lambda v: v / 7),
    st.floats(1e-6, 1e9),
    st.integers(2, 8),
    st.booleans(),
)
def test_ticks_cover_the_range_evenly(low: float, span: float, count: int, whole: bool) -> None:
    high = low + max(span, abs(low) * 1e-6)
    found = axes.ticks(low, high, count, integers=whole)
    slack = (high - low) * 1e-6
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert len(found) <= count + 3
    steps = np.diff(found)
    assert np.allclose(steps, steps[0], rtol=1e-3)
    if whole:
        assert all(tick == round(tick) for tick in found)


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0.0, 0.21, 5, ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25"]),
        (0.0, 10000.0, 4, ["0", "2,500", "5,000", "7,500", "10,000"]),
        (-1.0, 1.0, 4, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        (0.0, 0.9, 4, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        (0.0, 2e6, 2, ["0", "1M", "2M"]),
    ],
)
def test_ticks_are_round_and_labels_short(
    low: float, high: float, count: int, expected: list[str]
) -> None:
    assert axes.labels(axes.ticks(low, high, count)) == expected


def test_labels_have_the_decimals_of_the_ticks_not_of_their_distance() -> None:
    assert axes.labels([-0.5, 0.5]) == ["−0.5", "0.5"]


def test_log_ticks_cover_the_range() -> None:
    assert axes.log_ticks(0.02, 300) == [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
    assert axes.log_ticks(10, 10) == [10.0, 100.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"),
        (-0.25, "−0.25"),
        (2.5e6, "2.5M"),
        (3e-7, "3×10⁻⁷"),
        (1e-6, "10⁻⁶"),
        (math.nan, "–"),
        (0.0, "0"),
        (-0.0, "0"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert axes.number(value) == text


# --- PNG ----------------------------------------------------------------------------------------


def decode(data: bytes) -> np.ndarray:
    """A PNG of 8-bit channels, by the book: chunks, checksums, zlib, filters 0 and 2."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    position, body, header = 8, b"", ()
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        kind = data[position + 4 : position + 8]
        content = data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
        assert checksum == zlib.crc32(kind + content)
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", content)
        elif kind == b"IDAT":
            body += content
        position += 12 + length
    assert kind == b"IEND"
    width, height, bits, colour, *rest = header
    assert (bits, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, -1)
    pixels = np.zeros((height, width * channels), np.uint8)
    for index, row in enumerate(rows):
        assert row[0] in (0, 2)
        above = pixels[index - 1] if row[0] == 2 and index else np.zeros_like(pixels[0])
        pixels[index] = row[1:] + above
    return pixels.reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 3), (17, 40, 4)])
def test_png_round_trip(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(decode(png.encode(pixels)), pixels)


def test_png_is_what_imaging_libraries_read() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (6, 9, 4), dtype=np.uint8)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(png.encode(pixels)))), pixels)


@pytest.mark.parametrize("shape", [(3, 3), (3, 3, 2), (0, 3, 4)])
def test_png_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="pixel"):
        png.encode(np.zeros(shape, dtype=np.uint8))


# --- charts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizontal", [False, True])
def test_bars_are_as_long_as_their_values(horizontal: bool) -> None:
    values = [0.1, 0.4, 0.0, 0.25]
    chart = svg.bar_chart(
        values,
        list("abcd"),
        title="t",
        x_label="x",
        y_label="y",
        highlight=1,
        horizontal=horizontal,
    )
    bars = of_class(drawing(chart), "bar")
    lengths = attributes(bars, "width" if horizontal else "height")
    assert lengths / lengths[1] == pytest.approx(np.array(values) / 0.4, abs=1e-3)
    assert [("c2" in bar.get("class", "").split()) for bar in bars] == [False, True, False, False]
    assert [bar.findtext("title") for bar in bars][1].endswith(": 0.4")


def test_negative_bars_hang_from_the_same_zero() -> None:
    chart = svg.bar_chart([2.0, -1.0], ["a", "b"], title="", x_label="", y_label="")
    up, down = of_class(drawing(chart), "bar")
    zero = float(up.get("y", "")) + float(up.get("height", ""))
    assert float(down.get("y", "")) == pytest.approx(zero, abs=0.02)
    assert float(up.get("height", "")) == pytest.approx(2 * float(down.get("height", "")), abs=0.03)


def test_names_of_many_bars_are_thinned_to_round_numbers() -> None:
    chart = svg.bar_chart(
        poisson(20, 50), [str(d) for d in range(1, 51)], title="", x_label="", y_label=""
    )
    names = [t.text for t in drawing(chart).iter("text") if (t.text or "").isdecimal()]
    assert names == [str(d) for d in range(5, 51, 5)]


def test_lines_go_through_their_points_and_marks_stand_at_theirs() -> None:
    xs, ys = [0.0, 10.0, 40.0, 100.0], [1.0, 3.0, 2.0, 5.0]
    chart = drawing(
        svg.line_chart(
            {"a": (xs, ys)},
            title="t",
            x_label="epoch",
            y_label="y",
            marks=[(40.0, "7"), 100.0],
            mark_name="birth",
        )
    )
    points = corners(of_class(chart, "line")[0].get("d", ""))
    assert points.shape == (4, 2)
    for column, values in ((0, xs), (1, ys)):  # an affine map of the data, y upside down
        slope, intercept = np.polyfit(values, points[:, column], 1)
        assert points[:, column] == pytest.approx(slope * np.array(values) + intercept, abs=0.02)
        assert slope > 0 if column == 0 else slope < 0
    marks = of_class(chart, "mark")
    assert attributes(marks, "x1") == pytest.approx(points[[2, 3], 0], abs=0.02)
    assert [mark.findtext("title") for mark in marks] == [
        "birth 7 at epoch 40",
        "birth at epoch 100",
    ]
    assert "7" in [text.text for text in of_class(chart, "strong")]


def test_log_axis_is_logarithmic_and_what_it_cannot_show_is_a_gap() -> None:
    values = [1.0, 10.0, 100.0, 0.0, -3.0, 1000.0]
    chart = drawing(
        svg.line_chart({"a": (range(6), values)}, title="", x_label="", y_label="", log_y=True)
    )
    path = of_class(chart, "line")[0].get("d", "")
    assert path.count("M") == 2
    heights = corners(path)[:, 1]
    assert np.diff(heights) == pytest.approx([np.diff(heights)[0]] * 3, abs=0.03)
    assert len(of_class(chart, "dot")) == 1  # the lone last value


def test_steps_go_along_and_then_up() -> None:
    chart = drawing(
        svg.line_chart({"m": ([0, 1], [4, 5])}, title="", x_label="", y_label="", steps=["m"])
    )
    path = of_class(chart, "line")[0].get("d", "")
    assert re.fullmatch(r"M\S+ \S+H\S+V\S+", path)


def test_thinning_keeps_every_extreme_and_gap() -> None:
    random = np.random.default_rng(0)
    ys = random.normal(size=30_000)
    ys[[123, 17_777]] = 50, -60
    ys[[20_000, 20_080]] = np.nan  # alone, in the midst of their stretches
    points = list(zip(range(30_000), ys.tolist(), strict=True))
    kept = thin(points)
    assert len(kept) < 1200
    assert (123, 50.0) in kept
    assert (17_777, -60.0) in kept
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert [x for x, y in kept if math.isnan(y)] == [20_000, 20_080]
    xs = [x for x, _ in kept]
    assert xs == sorted(xs)


def test_thinned_charts_stay_small() -> None:
    ys = np.random.default_rng(0).normal(size=100_000)
    chart = svg.line_chart({"a": (range(100_000), ys)}, title="", x_label="", y_label="")
    assert len(chart) < 40_000


any_number = st.floats() | st.integers(-9, 9) | st.sampled_from([1e-300, 5e-324, 1e300, 0.3])


@given(st.lists(st.tuples(any_number, any_number), max_size=8), st.booleans())
def test_any_numbers_are_drawn_within_the_frame(
    points: list[tuple[float, float]], log: bool
) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    figures = [
        svg.line_chart({"a": (xs, ys)}, title="", x_label="", y_label="", log_y=log),
        svg.scatter_chart({"a": (xs, ys)}, title="", x_label="", y_label="", diagonal=log),
    ]
    if ys:
        names = [str(x) for x in xs]
        figures.append(svg.bar_chart(ys, names, title="", x_label="", y_label="", horizontal=log))
    for figure in figures:
        chart = drawing(figure)
        _, _, width, height = (float(v) for v in chart.get("viewBox", "").split())
        for element in chart.iter():
            for name in ("x", "x1", "x2", "cx"):
                assert -0.1 <= float(element.get(name, "0")) <= width + 0.1
            for name in ("y", "y1", "y2", "cy"):
                assert -0.1 <= float(element.get(name, "0")) <= height + 0.1
        for path in of_class(chart, "line"):
            assert not re.search("nan|inf|e", path.get("d", ""))


@pytest.mark.parametrize("series", [{}, {"a": ([], [])}, {"a": ([1], [math.nan])}])
def test_charts_of_nothing_are_drawn(series: dict[str, svg.Series]) -> None:
    parse(svg.line_chart(series, title="t", x_label="x", y_label="y"))
    parse(svg.scatter_chart(series, title="t", x_label="x", y_label="y"))


def test_bars_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        svg.bar_chart([], [], title="", x_label="", y_label="")
    with pytest.raises(ValueError, match="2 values and 1 labels"):
        svg.bar_chart([1.0, 2.0], ["a"], title="", x_label="", y_label="")


def test_scatter_areas_and_reference() -> None:
    chart = drawing(
        svg.scatter_chart(
            {"a": ([1.0, 2.0, 3.0], [0.5, 0.9, 0.7])},
            title="",
            x_label="x",
            y_label="y",
            sizes={"a": [0.25, 1.0, 0.5]},
            reference=(0.9, "mixture"),
        )
    )
    dots = of_class(chart, "dot")
    radii = attributes(dots, "r")
    assert (radii / radii[1]) ** 2 == pytest.approx([0.25, 1.0, 0.5], abs=0.01)
    (line,) = of_class(chart, "reference")
    assert line.get("y1") == line.get("y2") == dots[1].get("cy")


def test_large_scatters_are_thinned() -> None:
    xs = np.random.default_rng(0).normal(size=(2, 50_000))
    chart = svg.scatter_chart({"a": (xs[0], xs[1])}, title="", x_label="", y_label="")
    count = of_class(drawing(chart), "dots")[0].get("d", "").count("M")
    assert 3000 <= count <= 4000


def test_the_diagonal_is_where_both_axes_agree() -> None:
    chart = drawing(
        svg.scatter_chart(
            {"a": ([1.0, 9.0], [2.0, 7.0])}, title="", x_label="", y_label="", diagonal=True
        )
    )
    (line,) = of_class(chart, "reference")
    dots = of_class(chart, "dot")
    x1, y1, x2, y2 = (float(line.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
    xs, ys = attributes(dots, "cx"), attributes(dots, "cy")
    slope = (y2 - y1) / (x2 - x1)
    below = ys - (y1 + slope * (xs - x1))  # y grows downwards
    assert below[0] < 0 < below[1]  # (1, 2) lies above the diagonal, (9, 7) below it


def test_reliability_leaves_out_empty_bins_and_stands_on_the_diagonal() -> None:
    chart = drawing(svg.reliability_chart([0.1, 0.5, 0.9], [0.1, 0.7, 0.9], [10, 0, 40], title=""))
    dots = of_class(chart, "dot")
    assert len(dots) == 2
    (line,) = of_class(chart, "reference")
    x1, y1, x2, y2 = (float(line.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
    for dot, share in zip(dots, (0.1, 0.9), strict=True):
        assert float(dot.get("cx", "")) == pytest.approx(x1 + share * (x2 - x1), abs=0.02)
        assert float(dot.get("cy", "")) == pytest.approx(y1 + share * (y2 - y1), abs=0.02)
    bars = attributes(of_class(chart, "bar"), "height")
    assert bars[0] / bars[1] == pytest.approx(0.25, abs=0.01)


def test_heatmap_carries_its_picture_and_its_points() -> None:
    probs = np.zeros((2, 3, 2))
    probs[0] = [1.0, 0.0]  # the lower row: class 0 for certain
    probs[1] = [0.5, 0.5]
    chart = drawing(
        svg.heatmap(
            probs,
            (0.0, 3.0, 0.0, 2.0),
            ([0.0, 3.0, 99.0], [0.0, 2.0, 0.0], [0, 1, 0]),
            title="t",
            x_label="x",
            y_label="y",
            wrong=[False, True, False],
        )
    )
    (image,) = chart.iter("image")
    kind, data = image.get("href", "").split(",")
    assert kind == "data:image/png;base64"
    pixels = decode(base64.b64decode(data))
    assert pixels.shape == (2, 3, 4)
    assert (pixels[0, :, 3] == 0).all()  # the top row is the undecided one
    assert (pixels[1, :, 3] == 120).all()
    left, top = float(image.get("x", "")), float(image.get("y", ""))
    right = left + float(image.get("width", ""))
    bottom = top + float(image.get("height", ""))
    dots = [path.get("d", "") for path in of_class(chart, "dots")]
    assert len(dots) == 2
    assert dots[0].count("M") == 1  # the point outside of the picture is not drawn
    for path, corner in zip(dots, ((left, bottom), (right, top)), strict=True):
        assert [float(v) for v in path[1:].split("h")[0].split()] == pytest.approx(corner, abs=0.02)
    assert of_class(chart, "crosses")[0].get("d", "").count("M") == 1


def test_pixels_take_the_colour_of_the_class_and_the_quantity() -> None:
    pixels = maps.class_pixels(np.array([[[0.2, 0.8], [0.9, 0.1]]]))
    assert pixels[0, 0, 0] > pixels[0, 0, 2]  # the second class is orange
    assert pixels[0, 1, 0] < pixels[0, 1, 2]  # the first one blue
    assert pixels[0, 1, 3] > pixels[0, 0, 3] > 0
    quantity = maps.quantity_pixels(np.array([[0.0, 1.0, 2.0]]), 3)
    assert quantity[0, :, 3].tolist() == [0, 128, 255]


def charts(text: str) -> dict[str, str]:
    """Every kind of chart with a text wherever one can be."""
    axis = {"title": text, "x_label": text, "y_label": text}
    grid = np.full((2, 2, 2), 0.5)
    return {
        "bars": svg.bar_chart([1.0, 2.0], [text, text], **axis),
        "lying bars": svg.bar_chart([1.0, 2.0], [text, text], horizontal=True, **axis),
        "lines": svg.line_chart(
            {text: ([1, 2], [1, 2]), "b": ([1, 2], [2, 1])}, marks=[(1, text)], **axis
        ),
        "scatter": svg.scatter_chart(
            {text: ([1.0], [1.0])}, tips={text: [text]}, reference=(1.0, text), **axis
        ),
        "reliability": svg.reliability_chart([0.5], [0.5], [3], **axis),
        "map": svg.heatmap(grid, (0, 1, 0, 1), ([0.5], [0.5], [1]), names=[text, text], **axis),
        "table": page.table([text, "b"], [[text, text]], title=text),
    }


@pytest.mark.parametrize("kind", list(charts("x")))
def test_hostile_text_stays_text(kind: str) -> None:
    figure = charts(HOSTILE)[kind]
    root = parse(figure)  # well-formed, although the name has quotes, tags and control characters
    assert "<script" not in figure
    assert not list(root.iter("script"))
    said = "".join(root.itertext()) + "".join(v for e in root.iter() for v in e.attrib.values())
    assert "<script>alert" in said


@pytest.mark.parametrize("kind", list(charts("x")))
def test_charts_are_labelled_for_those_who_cannot_see_them(kind: str) -> None:
    root = parse(charts("Deep & wide")[kind])
    assert root.findtext("figcaption") == "Deep & wide"
    if kind != "table":
        image = drawing(charts("Deep & wide")[kind])
        assert (image.get("role"), image.get("aria-label")) == ("img", "Deep & wide")
        assert image.findtext("title") == "Deep & wide"
        assert "viewBox" in image.attrib
        assert "width" not in image.attrib  # it takes the width that it is given


# --- sections -----------------------------------------------------------------------------------


def test_depth_posterior_draws_q() -> None:
    model = ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2), ub.TruncatedPoisson(3.0))
    section = sections.depth_posterior(model)
    bars = of_class(drawing(section.figures[0]), "bar")
    q = model.depth_log_probs().detach().exp().numpy()
    heights = attributes(bars, "height")
    assert heights / heights.sum() == pytest.approx(q, abs=2e-3)
    assert bars[model.depth.mode() - 1].get("class", "").split()[1] == "c2"
    assert f"expected one {model.depth.mean():.2f}" in section.text


def test_deep_posteriors_are_drawn_where_the_mass_is() -> None:
    section = sections.posterior_section(poisson(500, 700))
    bars = of_class(drawing(section.figures[0]), "bar")
    assert 100 < len(bars) < 200
    assert "Of 700 depths" in section.text


def test_the_middle_of_the_mass() -> None:
    text = sections.posterior_section([0.04, 0.06, 0.8, 0.06, 0.04], first_depth=3).text
    assert "between depths 4 and 6" in text
    assert "most probable depth is 5" in text


def history(epochs: int = 30) -> History:
    rows = [
        {
            "epoch": epoch,
            "elbo": -100.0 / epoch - 3.0,
            "expected_log_lik": -100.0 / epoch,
            "depth_kl": 1.0,
            "weight_kl": 2.0,
            "depth_mean": 2 + epoch / 10,
            "max_depth": 4 + epoch // 10,
            "val_accuracy": 1 - 0.5 / epoch,
        }
        for epoch in range(1, epochs + 1)
    ]
    births = [{"step": 40, "epoch": 10, "depth": 5}, {"step": 40, "epoch": 10, "depth": 6}]
    return History(rows, births)


def test_depth_over_time_marks_births_where_they_were() -> None:
    section = sections.depth_over_time(history())
    chart = drawing(section.figures[0])
    mean, _ = of_class(chart, "line")
    (mark,) = of_class(chart, "mark")
    tenth = corners(mean.get("d", ""))[9]
    assert float(mark.get("x1", "")) == pytest.approx(tenth[0], abs=0.02)
    assert mark.findtext("title") == "birth of a layer 5–6 at epoch 10"
    assert "2 layers were born" in section.text
    assert "moved by +0.30, to 5.00" in section.text


def test_elbo_terms_are_costs_on_a_log_axis_unless_one_is_negative() -> None:
    def heights(table: History) -> list[float]:
        lines = of_class(drawing(sections.elbo_terms(table).figures[0]), "line")
        return [float(corners(line.get("d", ""))[-1, 1]) for line in lines]

    misfit, weights, depth, total = heights(history())
    # On a log axis ten times as much is the same distance anywhere: log 2 between 1 and 2.
    unit = (depth - weights) / math.log(2)
    assert depth - misfit == pytest.approx(unit * math.log(100 / 30), abs=0.1)
    assert depth - total == pytest.approx(unit * math.log(100 / 30 + 3), abs=0.1)
    dense = history()
    for row in dense.rows:  # a density above one
        row["expected_log_lik"], row["elbo"] = 5.0, 2.0
    misfit, weights, depth, total = heights(dense)
    assert (misfit - depth) / (depth - weights) == pytest.approx(6, abs=0.1)
    assert (total - depth) / (depth - weights) == pytest.approx(3, abs=0.1)


def test_sections_of_an_empty_history_say_so() -> None:
    empty = History()
    for section in (
        sections.depth_over_time(empty),
        sections.elbo_terms(empty),
        sections.score_over_time(empty, "accuracy"),
    ):
        assert not of_class(drawing(section.figures[0]), "line")
    assert "No layer was born" in sections.depth_over_time(empty).text


def test_score_over_time_draws_each_set() -> None:
    table = history()
    for row in table.rows:
        row["test_accuracy"] = 0.7
    chart = parse(sections.score_over_time(table, "accuracy").figures[0])
    assert [item.text or "".join(item.itertext()) for item in chart.iter("li")] == [
        "validation",
        "test",
    ]


def test_score_by_depth_shows_depths_and_mixture() -> None:
    section = sections.score_by_depth([2, 3, 4], [5.0, 4.0, 3.0], 3.5, "rmse", [0.25, 0.5, 0.25])
    chart = drawing(section.figures[0])
    dots = of_class(chart, "dot")
    heights = attributes(dots, "cy")
    assert np.diff(heights) == pytest.approx([np.diff(heights)[0]] * 2, abs=0.02)
    (line,) = of_class(chart, "reference")
    assert float(line.get("y1", "")) == pytest.approx(heights[1:].mean(), abs=0.02)
    assert dots[1].findtext("title") == "depth 3: RMSE 4, q(ℓ) 0.5"
    assert section.title == "RMSE at each depth"


def test_decision_boundary_shows_what_the_model_says() -> None:
    model = ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2), ub.FixedDepth(1))
    with torch.no_grad():  # class 1 where the first input is positive
        for parameter in model.parameters():
            parameter.zero_()
        model.network.hidden["1"].weight[0, 0] = 100.0
        model.network.heads["1"].weight[1, 0] = 1.0
        model.network.heads["1"].bias[0] = 10.0
    x = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
    layers = len(model.network.hidden)
    section = sections.decision_boundary(model, x, torch.tensor([0, 1, 0, 0]))
    assert len(model.network.hidden) == layers
    boundary, disagreement = map(drawing, section.figures)
    assert "predicted wrongly (1)" in section.figures[0]

    def pixels(chart: ElementTree.Element) -> np.ndarray:
        (image,) = chart.iter("image")
        return decode(base64.b64decode(image.get("href", "").split(",")[1]))

    found = pixels(boundary)
    middle = found.shape[1] // 2
    blue, orange = found[:, : middle - 5], found[:, middle + 30 :]
    assert (blue[..., 2] > blue[..., 0]).all()
    assert (orange[..., 0] > orange[..., 2]).all()
    assert (pixels(disagreement)[..., 3] == 0).all()  # a single depth agrees with itself


def test_depth_information_is_the_mutual_information() -> None:
    likelihood = ub.Categorical(2)
    sure = torch.tensor([[20.0, -20.0], [-20.0, 20.0]])
    prediction = likelihood.predict(
        torch.stack([sure, sure.flip(0)])[:, :1], torch.tensor([0.5, 0.5]).log()
    )
    # Two depths that are certain of opposite classes: knowing ℓ tells a whole bit.
    assert sections.depth_information(prediction).tolist() == pytest.approx([math.log(2)])


def test_decision_boundary_says_what_it_needs() -> None:
    model = ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2))
    with pytest.raises(ValueError, match="two inputs"):
        sections.decision_boundary(model, torch.zeros(5, 3), torch.zeros(5))


# --- the page -----------------------------------------------------------------------------------


def a_page() -> str:
    return page.render(
        f"Title {HOSTILE}",
        f"Sub {HOSTILE}\n\nSecond paragraph",
        [(HOSTILE, HOSTILE), ("depth", "4")],
        [
            page.Section("First <b>", "Words & words.\n\nMore.", [charts(HOSTILE)["bars"]]),
            page.Section("Second", "", list(charts("x").values()), wide=True),
            page.Section("Third"),
        ],
    )


def test_the_page_is_well_formed_and_complete_in_itself() -> None:
    text = a_page()
    root = ElementTree.fromstring(text)
    assert root.tag == "html"
    assert [h.text for h in root.iter("h2")] == ["First <b>", "Second", "Third"]
    assert len(list(root.iter("svg"))) == 7
    assert [s.get("class") for s in root.iter("section")] == [None, "wide", None]
    assert not list(root.iter("script"))
    assert not list(root.iter("link"))
    assert "http://" not in text
    assert "https://" not in text
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            if name in ("href", "src"):
                assert value.startswith("data:image/png;base64,")
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert [p.text for p in root.findall("./body/header/p")][1] == "Second paragraph"


def test_the_page_nests_as_html() -> None:
    class Parser(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.scripts = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.open.append(tag)
            self.scripts += tag == "script"

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            # HTML knows the short form for its void elements and within SVG alone.
            assert tag == "meta" or "svg" in self.open, tag

    parser = Parser()
    parser.feed(a_page())
    parser.close()
    assert parser.open == []
    assert parser.scripts == 0


def test_every_colour_that_charts_use_is_defined_in_both_themes() -> None:
    used = set(re.findall(r"var\((--[\w-]+)", page.STYLE + svg.STYLE))
    light, dark = (set(re.findall(r"(--[\w-]+):", part)) for part in (page._LIGHT, page._DARK))
    assert used <= light
    assert light == dark
    classes = {c for f in charts("x").values() for e in parse(f).iter() for c in _classes(e)}
    for name in classes:
        assert f".{name}" in page.STYLE + svg.STYLE or name in ("chart", "crosses"), name


def _classes(element: ElementTree.Element) -> list[str]:
    return element.get("class", "").split()


def test_rows_of_a_table_must_fit_its_columns() -> None:
    with pytest.raises(ValueError, match="1 cells"):
        page.table(["a", "b"], [["only one"]])


def test_write_is_atomic(tmp_path, monkeypatch) -> None:
    path = tmp_path / "page.html"
    page.write(path, "first ℓ")
    assert path.read_text(encoding="utf-8") == "first ℓ"

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        page.write(path, "second")
    assert path.read_text(encoding="utf-8") == "first ℓ"
    assert os.listdir(tmp_path) == ["page.html"]


def test_pages_that_cannot_be_written_are_refused(tmp_path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        page.check_target(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder .*missing does not exist"):
        page.check_target(tmp_path / "missing" / "page.html")
    if os.geteuid() != 0:  # nothing is forbidden to root
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(PermissionError, match="permission denied"):
            page.check_target(tmp_path / "locked" / "page.html")
