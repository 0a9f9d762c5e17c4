"""Published figures on the same splits: mean and standard error over the splits.

Budgets and searches differ from method to method, so these are marks to reach rather than a fair
race. PBP, MC dropout (the 2018 runs, with ten times the epochs and a grid search) and Deep
Ensembles as printed; where a standard deviation was printed it was divided by the root of the
number of splits. DUN from the results that its authors published. Figures rounded to zero are
left out. Histogram gradient boosting was run with scikit-learn's defaults on the same splits
(power and naval on the first five).
"""

from typing import NamedTuple


class Estimate(NamedTuple):
    """A mean over splits and its standard error (NaN where it is not known)."""

    mean: float
    error: float


def _columns(text: str) -> dict[str, dict[str, Estimate]]:
    """Method → set → estimate, from a table of "mean error" cells; "-" is a cell left out."""
    head, *rows = [[cell.strip() for cell in line.split("|")] for line in text.split("\n") if line]
    return {
        method: {
            row[0]: Estimate(*(float(number) for number in f"{row[place]} nan".split()[:2]))
            for row in rows
            if row[place] != "-"
        }
        for place, method in enumerate(head[1:], 1)
    }


RMSE = _columns("""
set      | PBP       | MC dropout  | Deep Ensembles | DUN
boston   | 3.01 0.18 | 2.90 0.18   | 3.28 0.22      | 3.20 0.22
concrete | 5.67 0.09 | 4.83 0.16   | 6.03 0.13      | 4.61 0.14
energy   | 1.80 0.05 | 0.54 0.01   | 2.09 0.06      | 0.61 0.04
kin8nm   | 0.10 0.0  | 0.079 0.001 | 0.09 0.0       | 0.076 0.001
naval    | 0.01 0.0  | 0.0007 0.0  | -              | 0.003 0.0
power    | 4.12 0.03 | 4.01 0.04   | 4.11 0.04      | 3.57 0.06
protein  | 4.73 0.01 | 4.27 0.02   | 4.71 0.03      | 3.40 0.03
wine     | 0.64 0.01 | 0.62 0.01   | 0.64 0.01      | 0.66 0.01
yacht    | 1.02 0.05 | 0.67 0.05   | 1.58 0.11      | 2.51 0.44
""")

NLL = _columns("""
set      | PBP        | MC dropout | Deep Ensembles | DUN
boston   | 2.57 0.09  | 2.40 0.04  | 2.41 0.06      | 2.60 0.08
concrete | 3.16 0.02  | 2.94 0.03  | 3.06 0.04      | 3.01 0.05
energy   | 2.04 0.02  | 1.21 0.01  | 1.38 0.05      | 1.04 0.04
kin8nm   | -0.90 0.01 | -1.14 0.01 | -1.20 0.0      | -1.15 0.02
naval    | -3.73 0.01 | -4.45 0.0  | -5.63 0.01     | -4.25 0.25
power    | 2.84 0.01  | 2.81 0.01  | 2.79 0.01      | 2.70 0.02
protein  | 2.97 0.0   | 2.87 0.0   | 2.83 0.01      | 2.66 0.02
wine     | 0.97 0.01  | 0.93 0.01  | 0.94 0.03      | 1.03 0.03
yacht    | 1.63 0.02  | 1.25 0.02  | 1.18 0.05      | 2.42 0.12
""")

BOOSTING = _columns("""
set      | boosting
boston   | 3.01 0.20
concrete | 4.50 0.18
energy   | 0.474 0.015
kin8nm   | 0.110 0.001
naval    | 0.0013
power    | 3.22 0.10
protein  | 3.87 0.01
wine     | 0.593 0.010
yacht    | 3.01 0.38
""")["boosting"]
"""RMSE of scikit-learn's HistGradientBoostingRegressor."""

SHALLOW = ("yacht", "boston", "energy", "concrete", "power")
"""Sets on which the paper's UDN has E[ℓ] below two; on the others it has more."""
