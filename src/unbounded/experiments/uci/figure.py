"""The two panels of the paper's appendix: errors of all models, and the depth that was inferred."""

import math
from collections.abc import Mapping
from html import escape

from unbounded.experiments.figures import GRID, INK, MUTED
from unbounded.experiments.uci.models import FINITE, LABELS
from unbounded.experiments.uci.published import SHALLOW, Figure

Values = Mapping[str, Mapping[str, Figure]]
"""Set → model → mean and standard error."""

_COLOURS = {
    "udn": "#c2570c",
    "udn-paced": "#e08a3c",
    "f2": "#bcd3ea",
    "f3": "#93b8dc",
    "f4": "#6a9dce",
    "f5": "#3f7fb8",
    "f6": "#1f5c94",
    "dun": "#5b8c5a",
    "deep-ensemble": "#6b5b95",
    "udn-ensemble": "#8c2d04",
}
_WIDTH, _LEFT, _RIGHT = 1000, 64, 800
_TOP, _MIDDLE, _LOW, _BOTTOM = 64, 300, 352, 520


def draw(errors: Values, depths: Values) -> str:
    """Both panels as one stand-alone SVG file.

    Args:
        errors: RMSE; drawn relative to the mean of the finite networks of its set.
        depths: E[ℓ]; only the UDN's is drawn.
    """
    relative = {name: _relative(row) for name, row in errors.items()}
    highest = max((f.mean + _half(f) for row in relative.values() for f in row.values()), default=1)
    lowest = min((f.mean - _half(f) for row in relative.values() for f in row.values()), default=1)
    top, bottom = min(math.ceil(highest * 10) / 10, 1.6), max(math.floor(lowest * 10) / 10, 0.4)
    names = list(errors)
    step = (_RIGHT - _LEFT) / max(1, len(names))
    parts = [
        _text(14, 24, "Nine UCI sets: test error, and the depth that the UDN inferred", 15, INK),
        _text(14, 48, "RMSE relative to the mean of f2 … f6 (± standard error over splits)"),
        *_axis(bottom, top, 0.1, _TOP, _MIDDLE),
    ]
    models = [m for m in LABELS if any(m in row for row in relative.values())]
    for place, name in enumerate(names):
        left = _LEFT + place * step
        parts.append(_text(left + step / 2, _MIDDLE + 18, name, anchor="middle"))
        for index, model in enumerate(models):
            if model in relative[name]:
                x = left + step * (index + 1) / (len(models) + 1)
                label = f"{name}, {LABELS[model]}: {_words(errors[name][model])}"
                parts.append(
                    _dot(x, relative[name][model], bottom, top, _TOP, _MIDDLE, model, label)
                )
    for row, model in enumerate(models):
        y = _TOP + 8 + 18 * row
        parts.append(f'<circle cx="{_RIGHT + 22}" cy="{y}" r="4" fill="{_COLOURS[model]}"/>')
        parts.append(_text(_RIGHT + 32, y + 4, LABELS[model]))
    found = {name: row["udn"] for name, row in depths.items() if "udn" in row}
    if found:
        parts += _depth_panel(names, found, step)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} 570" width="{_WIDTH}" '
        'height="570" role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, '
        f'Arial, sans-serif" font-size="12"><title>Nine UCI sets</title>'
        f'<rect width="{_WIDTH}" height="570" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _depth_panel(names: list[str], found: Mapping[str, Figure], step: float) -> list[str]:
    top = max(3.0, float(math.ceil(max(f.mean + _half(f) for f in found.values()))))
    parts = [
        _text(14, _LOW - 14, "E[ℓ] of the UDN; filled: sets on which the paper reports below 2"),
        *_axis(0.0, top, 1.0 if top <= 8 else 2.0, _LOW, _BOTTOM),
    ]
    for place, name in enumerate(names):
        x = _LEFT + (place + 0.5) * step
        parts.append(_text(x, _BOTTOM + 18, name, anchor="middle"))
        if name in found:
            fill = None if name in SHALLOW else "#ffffff"
            label = f"{name}: E[ℓ] = {_words(found[name])}"
            parts.append(_dot(x, found[name], 0.0, top, _LOW, _BOTTOM, "udn", label, fill))
    return parts


def _relative(row: Mapping[str, Figure]) -> dict[str, Figure]:
    """Relative to the mean of the finite networks, or of all models where there are none."""
    base = [row[m].mean for m in FINITE if m in row] or [f.mean for f in row.values()]
    unit = sum(base) / len(base)
    return {model: Figure(f.mean / unit, f.error / unit) for model, f in row.items()}


def _axis(low: float, high: float, step: float, top: float, bottom: float) -> list[str]:
    parts = []
    for index in range(round((high - low) / step) + 1):
        value = low + index * step
        y = bottom - (value - low) / (high - low) * (bottom - top)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{value:.3g}", anchor="end"))
    return parts


def _dot(
    x: float,
    value: Figure,
    low: float,
    high: float,
    top: float,
    bottom: float,
    model: str,
    label: str,
    fill: str | None = None,
) -> str:
    """A dot with its whisker; values beyond the axis are drawn at its end, as triangles."""

    def y(number: float) -> float:
        place = bottom - (number - low) / (high - low) * (bottom - top)
        return min(max(place, top - 6), bottom + 6)

    colour, centre, half = _COLOURS[model], y(value.mean), _half(value)
    whisker = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y(value.mean - half):.1f}" '
        f'y2="{y(value.mean + half):.1f}" stroke="{colour}" stroke-width="1.4"/>'
    )
    tip = f"<title>{escape(label)}</title>"
    if value.mean > high:
        return f'<path d="M{x - 4:.1f} {centre + 4:.1f}h8l-4 -8z" fill="{colour}">{tip}</path>'
    return (
        f'{whisker}<circle cx="{x:.1f}" cy="{centre:.1f}" r="4" fill="{fill or colour}" '
        f'stroke="{colour}" stroke-width="1.4">{tip}</circle>'
    )


def _half(value: Figure) -> float:
    return 0.0 if math.isnan(value.error) else value.error


def _words(value: Figure) -> str:
    return f"{value.mean:.4g}" + ("" if math.isnan(value.error) else f" ± {value.error:.2g}")


def _text(
    x: float, y: float, words: str, size: int = 12, colour: str = MUTED, anchor: str = "start"
) -> str:
    weight = 600 if size > 12 else 400
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}" font-weight="{weight}">{escape(words)}</text>'
    )
