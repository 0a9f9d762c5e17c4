"""Charts as inline SVG: pure functions of numbers that return strings, no dependency.

Each chart is a `<figure>` with a caption, a legend where there is more than one thing to tell
apart, and an `<svg>` that takes the width it is given. Colours are CSS variables and the size of
text depends on the width of the figure; `STYLE` says how, and a page includes it once (see
`unbounded.report.page`). All text that is passed in is escaped.
"""

from unbounded.report.bars import bar_chart as bar_chart
from unbounded.report.drawing import STYLE as STYLE
from unbounded.report.drawing import escape as escape
from unbounded.report.lines import Mark as Mark
from unbounded.report.lines import Series as Series
from unbounded.report.lines import line_chart as line_chart
from unbounded.report.maps import heatmap as heatmap
from unbounded.report.points import reliability_chart as reliability_chart
from unbounded.report.points import scatter_chart as scatter_chart
