"""A depth family of your own: a bell q(ℓ) ∝ exp(−(ℓ−μ)²/2s²) with a place and a spread."""

import torch
from torch import nn

import unbounded as ub
from unbounded.data import spiral


class Bell(ub.DepthFamily):
    def __init__(self, place: float = 3.0, spread: float = 1.0):
        super().__init__()
        self.place = nn.Parameter(torch.tensor(place))
        self.log_spread = nn.Parameter(torch.tensor(spread).log())

    def scores(self, at, size):  # log q(ℓ) up to a constant, for λ with any leading axes
        depths = torch.arange(1, size + 1, device=at["place"].device)
        z = (depths - at["place"].double()[..., None]) / at["log_spread"].double().exp()[..., None]
        return -0.5 * z.square()

    def end(self, at, size):  # m(q): two spreads beyond the place
        return (at["place"] + 2 * at["log_spread"].exp()).ceil().clamp(min=1).long()


def run(epochs: int = 60, path: str = "bell.udn") -> list[ub.UDN]:
    x, y = spiral(omega=4)
    models = [ub.UDN(ub.Dense(2, 32, 2), ub.Categorical(2), Bell(), seed=s) for s in range(3)]
    ub.fit(models[0], x, y, epochs=epochs)  # one model,
    ub.fit(models[1:], (x, y), epochs=epochs)  # many at once,
    ub.save(models[0], path)  # and a file
    return [*models, ub.load(path, depth=Bell())]


if __name__ == "__main__":
    for model in run():
        print(f"E[depth] = {model.depth.mean():.2f}, at most {model.depth.max_depth()}")
