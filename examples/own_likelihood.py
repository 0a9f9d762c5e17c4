"""A likelihood of your own: Laplace noise, which forgives outliers."""

import torch
from torch import nn

import unbounded as ub


class Laplace(ub.Likelihood):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def log_prob(self, outputs, y):  # (depth, batch, 1) and (batch,) → (depth, batch)
        distance = (outputs[..., 0] - y).abs()
        return -distance / self.log_scale.exp() - self.log_scale - torch.tensor(2.0).log()


def run(epochs: int = 60, path: str = "laplace.udn") -> list[ub.UDN]:
    x = torch.linspace(-3, 3, 600)[:, None]
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.tan(torch.linspace(-1.5, 1.5, 600))
    models = [ub.UDN(ub.Dense(1, 32, 1, init="he"), Laplace(), seed=s) for s in range(3)]
    ub.fit(models[0], x, y, epochs=epochs)  # one model,
    ub.fit(models[1:], (x, y), epochs=epochs)  # many at once,
    ub.save(models[0], path)  # and a file
    return [*models, ub.load(path, likelihood=Laplace())]


if __name__ == "__main__":
    for model in run():
        print(f"scale {model.likelihood.log_scale.exp():.3f}, E[depth] = {model.depth.mean():.2f}")
