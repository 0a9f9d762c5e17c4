"""The paper's Algorithm 1 written down step by step, as most people would: the baseline.

A DataLoader over a TensorDataset, a Python loop over depths with a host read in each (the
log-likelihood for the log, as in a typical training script), autograd for every term, torch's
default Adam. Nothing in here is slowed down on purpose.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class PlainUDN(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int, rate: float):
        super().__init__()
        self.inputs, self.width, self.classes = inputs, width, classes
        self.raw_rate = nn.Parameter(torch.tensor(rate + math.log(-math.expm1(-rate))))
        self.hidden_layers = nn.ModuleList()
        self.output_layers = nn.ModuleList()
        self.optimizer: torch.optim.Optimizer | None = None
        self.update_depth()

    def max_depth(self) -> int:
        rate = F.softplus(self.raw_rate).item()
        count, probability = 0, math.exp(-rate)
        total = probability
        while total < 0.95:
            count += 1
            probability *= rate / count
            total += probability
        return count + 1

    def update_depth(self) -> int:
        depth = self.max_depth()
        while len(self.hidden_layers) < depth:
            inputs = self.inputs if not self.hidden_layers else self.width
            layer = nn.Sequential(nn.Linear(inputs, self.width), nn.ReLU())
            head = nn.Linear(self.width, self.classes)
            self.hidden_layers.append(layer)
            self.output_layers.append(head)
            if self.optimizer is not None:
                group = self.optimizer.param_groups[0]
                group["params"].extend([*layer.parameters(), *head.parameters()])
        return depth

    def log_q(self, depth: int) -> Tensor:
        rate = F.softplus(self.raw_rate)
        counts = torch.arange(depth, dtype=torch.float32)
        return (counts * rate.log() - torch.lgamma(counts + 1)).log_softmax(0)

    def elbo(self, x: Tensor, y: Tensor, num_data: int) -> tuple[Tensor, list[float], int]:
        depth = self.update_depth()
        log_q = self.log_q(depth)
        total = torch.zeros(())
        weights_log_prior = torch.zeros(())
        mixture = torch.zeros(x.shape[0], self.classes)
        log = []
        hidden = x
        for index in range(depth):
            hidden = self.hidden_layers[index](hidden)
            output = self.output_layers[index](hidden)
            for parameter in self.hidden_layers[index].parameters():
                weights_log_prior = weights_log_prior - parameter.square().sum() / 2
            head_log_prior = torch.zeros(())
            for parameter in self.output_layers[index].parameters():
                head_log_prior = head_log_prior - parameter.square().sum() / 2
            log_prior = index * math.log(0.5) - 0.5 - math.lgamma(index + 1)
            log_lik = -F.cross_entropy(output, y, reduction="sum") * (num_data / x.shape[0])
            q = log_q[index].exp()
            total = total + q * (
                log_lik + weights_log_prior + head_log_prior + log_prior - log_q[index]
            )
            mixture = mixture + q * output.softmax(1)
            log.append(log_lik.item())
        return total, log, int((mixture.argmax(1) == y).sum().item())


def plain_epoch(
    model: PlainUDN, train: DataLoader, validation: DataLoader, test: DataLoader
) -> list[float]:
    """One epoch of training, then validation and test; returns the accuracies."""
    assert model.optimizer is not None
    num_data = len(train.dataset)  # type: ignore[arg-type]
    model.train()
    for x, y in train:
        model.optimizer.zero_grad()
        elbo, _, _ = model.elbo(x, y, num_data)
        loss = -elbo / num_data
        loss.backward()
        model.optimizer.step()
    model.eval()
    accuracies = []
    for loader in (validation, test):
        right = 0
        with torch.no_grad():
            for x, y in loader:
                _, _, count = model.elbo(x, y, num_data)
                right += count
        accuracies.append(right / len(loader.dataset))  # type: ignore[arg-type]
    return accuracies


def plain_setup(
    sets: list[tuple[Tensor, Tensor]], rate: float, depth_rate: float
) -> tuple[PlainUDN, list[DataLoader]]:
    model = PlainUDN(2, 32, 2, rate)
    weights = [p for name, p in model.named_parameters() if name != "raw_rate"]
    model.optimizer = torch.optim.Adam(
        [{"params": weights, "lr": 0.005}, {"params": [model.raw_rate], "lr": depth_rate}]
    )
    loaders = [
        DataLoader(TensorDataset(*data), batch_size=256, shuffle=index == 0)
        for index, data in enumerate(sets)
    ]
    return model, loaders
