"""What the paper and those that it quotes report on CIFAR-10, in percent."""

from typing import NamedTuple

SOURCE = "Table 2 of the paper: 3 runs for the Ω and the UDN, 5 for the quoted figures"

RECIPE = "their recipe is not known in full; ours is one for all models"
FIXED = "solved by fixed steps"
LONGER = "the paper trains for 500 epochs by a schedule of its own, here `paper`; others are ours"


class Published(NamedTuple):
    """A row of Table 2: test accuracy in percent, and its standard deviation over runs."""

    label: str
    model: str  # our name for the same network
    mean: float
    deviation: float
    source: str = "the paper"
    differs: str = LONGER  # why ours may be another number


TABLE = (
    Published("Ω₅ (“ResNet-15”)", "5", 91.7, 0.2),
    Published("Ω₈ (“ResNet-24”)", "8", 93.6, 0.4),
    Published("Ω₁₀ (“ResNet-30”)", "10", 94.0, 0.2),
    Published("Ω₁₅ (“ResNet-45”)", "15", 94.0, 0.2),
    Published("Ω₂₀ (“ResNet-60”)", "20", 93.9, 0.1),
    Published("Ω₃₀ (“ResNet-90”)", "30", 93.9, 0.1),
    Published("ResNet-18", "resnet18", 92.9, 0.2, "Bai et al. 2020", RECIPE),
    Published(
        "NODE",
        "node",
        53.7,
        0.2,
        "Dupont et al. 2019",
        f"the bare form, 172,358 weights, as theirs; {FIXED}; {RECIPE}",
    ),
    Published(
        "ANODE",
        "anode",
        60.6,
        0.4,
        "Dupont et al. 2019",
        f"the bare form, 171,799 weights, as theirs; {FIXED}; {RECIPE}",
    ),
    Published(
        "MDEQ",
        "mdeq",
        93.8,
        0.3,
        "Bai et al. 2020",
        f"the image goes into every resolution and the gradient is a phantom one; {RECIPE}",
    ),
    Published("UDN", "udn", 94.4, 0.2, differs=f"{LONGER}; the paper's rule of λ is `gradient`"),
)
"""Table 2, with the finite networks in the order of their depth."""

EASY, HARD = ("deer", "automobile"), ("cat", "dog")
"""The least and the most confused pair of classes; the paper calls the automobile a car."""

ACCURACY: dict[tuple[str, ...], float] = {EASY: 99.0, HARD: 88.0, (): 94.0}
"""Of the UDN on each pair and on all ten classes, in percent, as the text of the paper rounds."""
