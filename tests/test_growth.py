"""Birth and death of layers, with every optimiser and scheduler of torch."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded import growth
from unbounded.depth import FiniteDepth, FixedDepth, TruncatedPoisson
from unbounded.training import param_groups

OPTIMIZERS = [
    torch.optim.Adadelta,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
]
SCHEDULERS = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, [0.01, 0.01, 0.001], total_steps=20),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.01, cycle_momentum=False),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


def set_rate(model, rate):
    """Put λ where we want it, as an optimiser would."""
    model.depth.raw_rate.data.copy_(TruncatedPoisson(rate).raw_rate.data)


def moments(optimizer):
    """A copy of the optimiser's state, by parameter."""
    return {p: copy.deepcopy(s) for p, s in optimizer.state.items()}


def test_plan_is_pure_and_apply_acts():
    model = classifier()
    set_rate(model, 5.0)
    before = state(model)
    plan = growth.plan(model)
    assert same(before, state(model))
    assert list(plan.hidden) == list(plan.heads) == [5, 6, 7, 8, 9, 10]
    growth.apply(plan, model)
    assert model.network.num_layers == model.depth.max_depth() == 10
    assert not growth.plan(model).changes


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_growth_with_every_optimiser(kind):
    """Older depths' outputs stay bit-identical, their optimiser state intact; new layers train."""
    x, y = classes(32)
    model = classifier().train()
    optimizer = ub.make_optimizer(model, kind, lr=0.01)
    for _ in range(3):
        ub.step(model, optimizer, x, y, 32)
    outputs, old = model.network(x, 4), moments(optimizer)
    groups, lists = list(optimizer.param_groups), [g["params"] for g in optimizer.param_groups]
    set_rate(model, 3.0)
    growth.grow(model, optimizer)
    assert model.network.num_layers == model.depth.max_depth() == 7
    assert torch.equal(model.network(x, 4), outputs)
    assert all(a is b for a, b in zip(groups, optimizer.param_groups, strict=True))
    assert all(a is g["params"] for a, g in zip(lists, groups, strict=True))
    for parameter, saved in old.items():
        for key, value in saved.items():
            now = optimizer.state[parameter][key]
            same_value = (
                torch.equal(now, value) if isinstance(value, torch.Tensor) else now == value
            )
            assert same_value, key
    in_groups = [p for g in optimizer.param_groups for p in g["params"]]
    assert {id(p) for p in in_groups} == {id(p) for p in model.parameters()}
    assert len(in_groups) == len(set(map(id, in_groups)))
    names = [n for g in optimizer.param_groups for n in g["param_names"]]
    assert sorted(names) == sorted(n for n, _ in model.named_parameters())
    fresh = model.network.hidden["7"].weight.clone()
    for _ in range(2):
        ub.step(model, optimizer, x, y, 32)
    assert not torch.equal(model.network.hidden["7"].weight, fresh)


class Eager(torch.optim.SGD):
    """An optimiser that fills its state when it is built, and relies on it."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = torch.zeros(())

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] += parameter.grad is not None
        return super().step(closure)


def test_growth_with_state_filled_at_construction():
    x, y = classes(32)
    model = classifier().train()
    optimizer = ub.make_optimizer(model, Eager, lr=0.01)
    ub.step(model, optimizer, x, y, 32)
    set_rate(model, 3.0)
    ub.step(model, optimizer, x, y, 32)
    assert optimizer.state[model.network.hidden["1"].weight]["seen"] == 2
    assert optimizer.state[model.network.hidden["7"].weight]["seen"] == 1


def test_groups_without_a_home_for_newborns_are_refused():
    model = classifier()
    optimizer = torch.optim.SGD(
        [{"params": model.depth.parameters()}, {"params": [nn.Parameter(torch.zeros(1))]}], lr=0.1
    )
    set_rate(model, 3.0)
    with pytest.raises(ValueError, match=r"no group of the optimiser holds the hidden.*'hidden'"):
        growth.grow(model, optimizer)


def test_growth_with_fused_momentum():
    """The fused kernel of SGD takes momentum for all parameters or none: newborns bring theirs."""
    x, y = classes(32)
    models, infos = [], []
    for fused in (True, False):
        model = classifier().train()
        optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused)
        ub.step(model, optimizer, x, y, 32)
        set_rate(model, 3.0)
        for _ in range(3):
            info = ub.step(model, optimizer, x, y, 32)
        models.append(model)
        infos.append(info)
    assert infos[0].loss == pytest.approx(infos[1].loss, rel=1e-6)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_growth_with_every_scheduler(make):
    """The same rates as without growth: the scheduler does not notice."""
    x, y = classes(32)

    def rates(grow):
        model = classifier().train()
        optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.01, momentum=0.5)
        scheduler = make(optimizer)
        seen = []
        for index in range(6):
            if grow and index == 3:
                set_rate(model, 3.0)
            ub.step(model, optimizer, x, y, 32)
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(1.0)
            else:
                scheduler.step()
            seen.append([group["lr"] for group in optimizer.param_groups])
        assert model.network.num_layers == (7 if grow else 4)
        return seen

    assert rates(True) == rates(False)


def test_groups_of_the_users_own():
    """One group for everything, or groups without roles: new parameters go with their kin."""
    x, y = classes(16)
    for build in (
        lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
        lambda m: torch.optim.SGD(
            [
                {"params": m.network.hidden.parameters(), "lr": 0.1},
                {"params": m.network.heads.parameters(), "lr": 0.2},
                {"params": m.depth.parameters(), "lr": 0.3},
            ]
        ),
    ):
        model = classifier().train()
        optimizer = build(model)
        set_rate(model, 3.0)
        ub.step(model, optimizer, x, y, 16)
        assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
            id(p) for p in model.parameters()
        }
        if len(optimizer.param_groups) == 3:
            hidden, heads, _ = optimizer.param_groups
            assert any(p is model.network.hidden["7"].weight for p in hidden["params"])
            assert any(p is model.network.heads["7"].weight for p in heads["params"])


def test_three_groups_with_their_rates():
    model = ub.UDN(ub.Dense(3, 4, 1), ub.Gaussian())
    hidden, heads, depth = param_groups(model, lr=0.02, depth_lr_ratio=0.25, weight_decay=0.1)
    assert [g["role"] for g in (hidden, heads, depth)] == ["hidden", "heads", "depth"]
    assert [g["lr"] for g in (hidden, heads, depth)] == [0.02, 0.02, 0.005]
    assert depth["weight_decay"] == 0
    assert hidden["weight_decay"] == 0.1
    assert "likelihood.noise.log_scale" in [name for name, _ in heads["params"]]
    assert [name for name, _ in depth["params"]] == ["depth.raw_rate"]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_layers_that_leave_the_support_are_left_alone(kind):
    """No gradient, no update, no ageing of the state; on return they go on where they were."""
    x, y = classes(32)
    model = classifier(TruncatedPoisson(3.0)).train()
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = ub.make_optimizer(model, kind, lr=0.01, weight_decay=0.1, **options)
    for _ in range(3):
        ub.step(model, optimizer, x, y, 32)
    set_rate(model, 0.5)
    m = model.depth.max_depth()
    assert m < model.network.num_layers
    gone = {
        n: p
        for n, p in model.named_parameters()
        if n.startswith("network") and int(n.split(".")[2]) > m
    }
    before = {n: p.detach().clone() for n, p in gone.items()}
    old = moments(optimizer)
    for _ in range(4):
        ub.step(model, optimizer, x, y, 32)
    assert model.network.num_layers == 7
    for name, parameter in gone.items():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])
        for key, value in old[parameter].items():
            assert torch.equal(optimizer.state[parameter][key], value)
    set_rate(model, 3.0)
    ub.step(model, optimizer, x, y, 32)
    assert all(not torch.equal(p, before[n]) for n, p in gone.items() if n.endswith("weight"))


def test_layers_can_be_dropped_from_memory():
    x, y = classes(32)
    model = classifier(TruncatedPoisson(3.0)).train()
    optimizer = ub.make_optimizer(model, lr=0.01)
    ub.step(model, optimizer, x, y, 32)
    first_birth = classifier(TruncatedPoisson(3.0)).network.hidden["6"].weight
    set_rate(model, 0.5)
    info = ub.step(model, optimizer, x, y, 32, drop_inactive=True)
    assert info.growth.drop_from == 4
    assert model.network.num_layers == model.depth.max_depth() == 3
    assert len(optimizer.state) == len(list(model.parameters())) == 3 * 4 + 1
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 13
    set_rate(model, 3.0)
    growth.grow(model, optimizer)
    assert torch.equal(model.network.hidden["6"].weight, first_birth)


def test_lbfgs_says_why_it_cannot_grow():
    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters())
    set_rate(model, 3.0)
    with pytest.raises(ValueError, match="LBFGS keeps one flat history"):
        growth.grow(model, optimizer)


def test_born_on_the_model_s_dtype_mode_and_memory_format():
    layers = ub.CustomLayers(
        lambda depth: nn.Conv2d(2, 2, 3, padding=1),
        lambda depth: nn.Sequential(nn.Flatten(), nn.Linear(32, 2)),
    )
    model = ub.UDN(layers, ub.Categorical(2)).double().eval()
    model.to(memory_format=torch.channels_last)
    set_rate(model, 4.0)
    growth.grow(model)
    newest = model.network.hidden[str(model.network.num_layers)]
    assert newest.weight.dtype == torch.float64
    assert newest.weight.is_contiguous(memory_format=torch.channels_last)
    assert not newest.weight.is_contiguous()
    assert not newest.training


def test_born_on_the_model_s_device():
    model = classifier().to("meta")
    model.depth = TruncatedPoisson(4.0)  # on the CPU: a meta tensor has no value to read
    growth.grow(model)
    assert all(p.device.type == "meta" for p in model.network.parameters())


def test_heads_only_where_there_is_mass():
    assert list(classifier(FixedDepth(4)).network.heads) == ["4"]
    assert list(classifier(FiniteDepth(3)).network.heads) == ["1", "2", "3"]


def test_resize_goes_both_ways():
    model = classifier(TruncatedPoisson(3.0))
    optimizer = ub.make_optimizer(model)
    full = state(model)
    growth.resize(model, 2, optimizer)
    assert model.network.num_layers == 2
    growth.resize(model, 7, optimizer)
    assert same(full, state(model))
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
