"""Recipes that have a name, and which of their fields a model looks at."""

from typing import Any

_BETTER: dict[str, Any] = {
    "block": "basic",
    "optimizer": "muon",
    "matrix_lr": 0.04,
    "batch_size": 512,
    "warm_up": 3,
    "flip": "alternating",
    "whitening": 3,
    "average": 0.998,
    "calibrate": True,
}
PRESETS: dict[str, dict[str, Any]] = {
    "fast": {**_BETTER, "epochs": 27, "smoothing": 0.1, "cutout": 6},
    "best": {**_BETTER, "epochs": 150, "cutout": 14},
}
"""Recipes by name, on top of the fast schedule."""
PAPER: dict[str, Any] = {
    "epochs": 500,
    "stretch": 1.0,
    "lr": 0.1,
    "warm_up": 0,
    "nesterov": False,
    "weight_decay": 1e-4,
    "init": "default",
    "pad": "zero",
    "cutout": 0,
    "equal_heads": False,
    "held_out": 0,
}
"""The schedule of the paper's appendix, where it differs from the usual recipe."""
EARLIER = {"held_out": 0, "depth_width": 1.0}
"""Fields that came later, where what was done before them is not the default."""
UDN_ONLY = frozenset(
    {"prior_rate", "layer_price", "speed", "memory", "search", "search_concentration"}
    | {"concentration", "equal_heads", "equal_layers", "caution", "depth_width"}
)
"""Fields of the recipe that only a UDN looks at."""
SOME_ONLY = frozenset({"stretch", "equal_steps"})
"""Fields that only runs on some of the classes look at."""
