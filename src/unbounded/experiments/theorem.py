"""The truncated Poisson family: the figure of the paper's appendix, and Theorem 1 at large rates.

Draws δ_k = 1.3 (k−1) + 5 − m(q(k)) for k = 1 … 70, the check that the proof leaves to a computer,
and checks the theorem's claims for rates up to 1e5, for the family as the theorem states it and
as the library uses it (shifted by one, since ℓ ≥ 1).
"""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unbounded.depth import TruncatedPoisson
from unbounded.depth.rates import poisson_quantile
from unbounded.experiments import StudyError, figures, records
from unbounded.printing import show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILE = 0.95
LARGEST = 70  # the proof's bound holds beyond by a Chernoff argument
RATES = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 88.0, 92.0, 1e3, 9850.0, 1e4, 1e5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--out", type=Path, default=Path("results/theorem"), help="folder to write")
    parser.add_argument("--largest", type=int, default=LARGEST, help="the figure's last k")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Print the table, write figure and numbers; returns the numbers."""
    if options.largest < 1:
        raise StudyError(f"--largest must be at least 1, got {options.largest}")
    records.check_folder(options.out, "theorem.json")
    counts = list(range(1, options.largest + 1))
    slack = [1.3 * (k - 1) + 5 - _quantile(k) for k in counts]
    rows = [check(rate) for rate in RATES]
    dense = sweep()
    result = {
        "study": "theorem",
        "configuration": {"quantile": QUANTILE, "largest": options.largest},
        "versions": records.versions(),
        "figure": {"k": counts, "slack": slack, "smallest": min(slack)},
        "sweep": dense,
        "rates": rows,
    }
    records.write_json(options.out / "theorem.json", result)
    show(table(rows))
    show(
        f"smallest δ_k for k = 1 … {options.largest}: {min(slack):.3g}; "
        f"{dense['rates']} rates from {dense['from']:g} to {dense['to']:g}: "
        f"{dense['violations']} violations, smallest slack {dense['smallest_slack']:.3g}"
    )
    drawing = figures.render(lambda figure: draw(figure, counts, slack), (7.2, 3.2))
    records.write_text(options.out / "truncated-poisson.svg", drawing)
    show(f"wrote {options.out / 'theorem.json'} and {options.out / 'truncated-poisson.svg'}")
    return result


def draw(figure: "Figure", counts: list[int], slack: list[float]) -> None:
    """Draw δ_k as a dot on a stem for each k."""
    axes = figure.subplots()
    axes.vlines(counts, 0, slack, color=figures.RED, alpha=0.45, linewidth=1)
    axes.plot(counts, slack, "o", color=figures.RED, markersize=3)
    axes.axhline(0, color=figures.MUTED, linewidth=0.8)
    figures.label(axes, "k", "δ_k = 1.3 (k−1) + 5 − m(q(k))", whole=True)
    figures.title(figure, "Truncated Poisson: the slack of the bound on m(q) is never negative")


def _quantile(rate: float) -> int:
    return int(poisson_quantile(torch.tensor(rate, dtype=torch.float64), QUANTILE))


def check(rate: float) -> dict[str, Any]:
    """What Theorem 1 says at one rate λ, and what is there.

    Without the shift, as the theorem states it: λ − ln 2 ≤ m ≤ 1.3 λ + 5 with m the 0.95-quantile,
    exactly the quantile (P(X ≤ m) ≥ 0.95 > P(X ≤ m−1)), and the mode of the member with rate
    n + ½ at n = ⌊λ⌋. With the shift, the library's own family: a normalised, finite posterior
    whose support ends at m + 1 and whose mode is n + 1.
    """
    m = _quantile(rate)
    # P(X ≤ k) is the regularised incomplete gamma function Q(k + 1, λ).
    counts = torch.tensor([m - 1.0, m], dtype=torch.float64)
    below, at = torch.special.gammaincc(counts + 1, torch.full_like(counts, rate)).tolist()
    n = math.floor(rate)
    middle = TruncatedPoisson(n + 0.5, QUANTILE)
    family = TruncatedPoisson(rate, QUANTILE).double()
    log_probs = family.log_probs().detach()
    family_mode = int(middle.log_probs().argmax()) + 1
    return {
        "rate": rate,
        "m": m,
        "lower": rate - math.log(2),
        "upper": 1.3 * rate + 5,
        "bounds_hold": rate - math.log(2) <= m <= 1.3 * rate + 5,
        "is_the_quantile": (at >= QUANTILE) and (m == 0 or below < QUANTILE),
        "n": n,
        "mode_is_n": family_mode == n + 1,
        "max_depth": family.max_depth(),
        "normalised": bool(torch.isfinite(log_probs).all())
        and abs(float(log_probs.exp().sum()) - 1) < 1e-9,
    }


def sweep(count: int = 400) -> dict[str, Any]:
    """The bounds on a fine grid of rates from 1e-3 to 1e5, evenly spaced in the logarithm."""
    rates = torch.logspace(-3, 5, count, dtype=torch.float64).tolist()
    quantiles = [_quantile(rate) for rate in rates]
    slacks = [
        min(1.3 * rate + 5 - m, m - (rate - math.log(2)))
        for rate, m in zip(rates, quantiles, strict=True)
    ]
    return {
        "rates": count,
        "from": rates[0],
        "to": rates[-1],
        "violations": sum(slack < 0 for slack in slacks),
        "smallest_slack": min(slacks),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The checks as a table of text."""
    lines = [
        f"{'λ':>8} {'λ − ln 2':>11} {'m':>7} {'1.3λ + 5':>10}  bounds  quantile  mode  normalised"
    ]
    for row in rows:
        yes = ["yes" if row[name] else "NO" for name in _CLAIMS]
        lines.append(
            f"{row['rate']:>8g} {row['lower']:>11.2f} {row['m']:>7d} {row['upper']:>10.1f}"
            f"  {yes[0]:<6}  {yes[1]:<8}  {yes[2]:<4}  {yes[3]}"
        )
    return "\n".join(lines)


_CLAIMS = ("bounds_hold", "is_the_quantile", "mode_is_n", "normalised")
