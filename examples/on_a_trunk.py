"""New layers on top of a frozen trunk: how many of them are worth having is inferred.

The trunk is layer 1's first part. It is not trained, so the prior does not count it, the optimiser
does not hold it, and every model has a copy of its own.
"""

import copy

import torch
from torch import nn

import unbounded as ub
from unbounded.data import spiral


class OnATrunk(ub.Layers):
    def __init__(self, trunk: nn.Module, features: int, width: int, outputs: int):
        self.trunk, self.sizes = trunk, (features, width, outputs)
        self.above = ub.PreNormDense(features, width, outputs)

    def hidden(self, depth: int) -> nn.Module:
        layer = self.above.hidden(depth)
        if depth > 1:
            return layer
        return nn.Sequential(copy.deepcopy(self.trunk).requires_grad_(False), layer)

    def head(self, depth: int) -> nn.Module:
        return self.above.head(depth)


def run(epochs: int = 60, path: str = "on_a_trunk.udn") -> list[ub.UDN]:
    train, held_out = spiral(omega=4), spiral(omega=4, part="validation")
    generator = torch.Generator().manual_seed(0)
    trunk = nn.Sequential(nn.Linear(2, 16), nn.Tanh())  # stands for one that was trained before
    with torch.no_grad():
        trunk[0].weight.normal_(std=2.0, generator=generator)
    layers = OnATrunk(trunk, 16, 32, 2)
    models = [ub.UDN(layers, ub.Categorical(2), ub.TruncatedNormal(), seed=s) for s in range(3)]
    for some in (models[0], models[1:]):  # one model, and many at once
        rule = ub.HeldOutAscent()  # it keeps what it has seen: each training has its own
        ub.fit(some, train, validation=held_out, epochs=epochs, depth_rule=rule)
    ub.save(models[0], path)  # and a file
    return [*models, ub.load(path, layers=layers)]


if __name__ == "__main__":
    for model in run():
        print(f"E[depth] = {model.depth.mean():.2f}, at most {model.depth.max_depth()}")
