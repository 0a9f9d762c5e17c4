"""A generator of layers of your own: pre-norm residual blocks that start as the identity."""

import torch
from torch import nn

import unbounded as ub
from unbounded.data import spiral


class PreNormBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.relu(self.linear(self.norm(h)))


class PreNorm(ub.Layers):
    def __init__(self, inputs: int, width: int, outputs: int):
        self.inputs, self.width, self.outputs = inputs, width, outputs

    def hidden(self, depth: int) -> nn.Module:
        return nn.Linear(self.inputs, self.width) if depth == 1 else PreNormBlock(self.width)

    def head(self, depth: int) -> nn.Module:
        return nn.Linear(self.width, self.outputs)


def run(epochs: int = 60, path: str = "pre_norm.udn") -> list[ub.UDN]:
    (x, y), layers = spiral(omega=4), PreNorm(2, 32, 2)
    models = [ub.UDN(layers, ub.Categorical(2), seed=s) for s in range(3)]
    ub.fit(models[0], x, y, epochs=epochs)  # one model,
    ub.fit(models[1:], (x, y), epochs=epochs)  # many at once,
    ub.save(models[0], path)  # and a file
    return [*models, ub.load(path, layers=layers)]


if __name__ == "__main__":
    for model in run():
        print(f"E[depth] = {model.depth.mean():.2f}, at most {model.depth.max_depth()}")
