"""What every engine promises: the same results, no stale graph, nothing silently left out."""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn

import unbounded as ub
from unbounded import growth
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.engines.averages import MovingAverage
from unbounded.training import Callback, RateAscent

X = torch.randn(48, 2, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] * X[:, 1] > 0).long()
OPTIONS = {"batch_size": 16, "progress": False}
RISING = {"depth_lr_ratio": 20.0, "lr": 0.02, "epochs": 8}


def udn(seed=0, **parts) -> ub.UDN:
    parts = {"depth_prior": ub.PoissonDepth(8.0), **parts}
    return ub.UDN(ub.Dense(2, 6, 2), ub.Categorical(2), seed=seed, **parts).double()


def assert_same(one, other, tolerance=1e-6) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=tolerance, atol=tolerance)


def test_averages_follow_births_in_every_engine():
    found = []
    for engine in (Eager(), Graphs(lag=0), Stacked()):
        models = [udn(0), udn(1)]
        results = ub.fit(models, (X, Y), engine=engine, average=0.9, **RISING, **OPTIONS)
        assert results[1].history.births
        found.append(models[1])
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


def test_averages_let_go_of_layers_that_are_dropped():
    model = udn(depth=ub.TruncatedPoisson(4.0))
    average = MovingAverage(model, 0.9)
    average.notice()
    gone = weakref.ref(model.network.hidden["5"].weight)
    before = model.network.hidden["1"].weight.detach().clone()
    average.values["network.hidden.1.weight"].zero_()
    with average.applied():
        assert not model.network.hidden["1"].weight.any()
    assert torch.equal(model.network.hidden["1"].weight, before)
    growth.resize(model, 3)
    average.notice()
    assert average.values.keys() == dict(model.named_parameters()).keys()
    gc.collect()
    assert gone() is None


def test_models_can_be_differentiated_as_any_module():
    model = ub.UDN(ub.Dense(2, 6, 2), ub.Categorical(2))
    jacobian = torch.func.jacrev(lambda v: model(v[None])[:, 0])(X[0])
    assert jacobian.shape == (4, 2, 2)
    with torch.no_grad():
        torch.func.vmap(lambda v: model(v[None]))(X[:3])
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert bool((x.grad != 0).any())


class Freeze(Callback):
    def on_epoch_end(self, trainer, row):
        if trainer.epoch == 2:
            trainer.model.network.hidden["1"].requires_grad_(False)
            self.kept = trainer.model.network.hidden["1"].weight.detach().clone()


@pytest.mark.parametrize("engine", [Eager, Graphs], ids=lambda engine: engine.__name__)
def test_a_layer_frozen_in_mid_training_rests(engine):
    model, callback = udn(), Freeze()
    ub.fit(model, X, Y, engine=engine(), epochs=5, callbacks=[callback], **OPTIONS)
    assert torch.equal(model.network.hidden["1"].weight, callback.kept)


def test_graphs_go_on_after_gradients_were_cleared_and_notice_new_hooks():
    class Clear(Callback):
        def on_epoch_end(self, trainer, row):
            trainer.optimizer.zero_grad()

    cleared, plain = udn(), udn()
    ub.fit(cleared, X, Y, engine=Graphs(), epochs=4, callbacks=[Clear()], **OPTIONS)
    ub.fit(plain, X, Y, engine=Graphs(), epochs=4, **OPTIONS)
    assert_same(cleared, plain, 0)
    network = plain.network
    before = network.signature(3)
    assert network.signature(3) == before
    handle = network.hidden["2"].register_forward_hook(lambda *_: None)
    assert network.signature(3) != before
    handle.remove()
    network.heads["1"].bias.requires_grad_(False)
    assert network.signature(3) != before


def test_milestones_survive_a_checkpoint(tmp_path):
    schedule = partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[2, 6])
    whole, cut = udn(), udn()
    ub.fit(whole, X, Y, epochs=8, scheduler=schedule, **OPTIONS)
    options = {"scheduler": schedule, "checkpoint": tmp_path / "run", "resume": True, **OPTIONS}
    ub.fit(udn(), X, Y, epochs=3, **options)
    ub.fit(cut, X, Y, epochs=8, **options)
    assert_same(whole, cut, 0)


def test_a_prior_that_is_replaced_counts():
    model = udn()
    ub.fit(model, X, Y, epochs=1, **OPTIONS)
    model.depth_prior = ub.PoissonDepth(1.0)
    fresh = udn(depth_prior=ub.PoissonDepth(1.0))
    fresh.load_state_dict(model.state_dict())
    found = [ub.fit(m, X, Y, epochs=1, **OPTIONS).history[0]["depth_kl"] for m in (model, fresh)]
    assert found[0] == found[1]


def test_callbacks_see_trained_models():
    seen = {}

    class Look(Callback):
        def on_epoch_end(self, trainer, row):
            for number, model in enumerate(trainer.models):
                state = {k: v.clone() for k, v in model.state_dict().items()}
                seen[trainer.epoch, number] = state
                assert model.network.num_layers == trainer.rows[number]["num_layers"]

    models, alone = [udn(0), udn(1)], udn(1)
    ub.fit(models, (X, Y), callbacks=[Look()], **RISING, **OPTIONS)
    ub.fit(alone, X, Y, **{**RISING, "epochs": 3}, **OPTIONS)
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(seen[3, 1][name], tensor, rtol=1e-6, atol=1e-6)


class Tenfold(nn.Linear):
    def forward(self, input):
        return 10 * super().forward(input)


def test_a_replaced_module_is_run_as_it_is():
    def model(seed):
        made = udn(seed)
        head = Tenfold(6, 2).double()
        head.load_state_dict(made.network.heads["1"].state_dict())
        made.network.heads["1"] = head
        return made

    stacked, eager = [model(0), model(1)], [model(0), model(1)]
    ub.fit(stacked, (X, Y), epochs=3, **OPTIONS)
    ub.fit(eager, (X, Y), epochs=3, engine=Eager(), **OPTIONS)
    assert_same(stacked[1], eager[1])
    with pytest.raises(ValueError, match="Stacked does not take models whose heads at depth 1"):
        ub.fit([udn(0), model(1)], (X, Y), epochs=1, **OPTIONS)


def same_layer() -> ub.CustomLayers:
    layer = nn.Linear(2, 2).double()
    return ub.CustomLayers(lambda depth: layer, lambda depth: nn.Linear(2, 2))


class Scaled(ub.Gaussian):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("extra", torch.tensor(scale))


class OwnForward(ub.UDN):
    def forward(self, x, support=None):
        return 2 * super().forward(x, support)


def hooked(seed):
    model = udn(seed)
    model.register_forward_hook(lambda *_: None)
    return model


def watched(seed):
    model = udn(seed)
    model.network.heads["1"].bias.register_hook(lambda grad: grad)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda seed: udn(seed).to(torch.bfloat16), "half precision"),
        (hooked, "hooks, as model 0 has at itself"),
        (watched, "hooks, as model 0 has at heads.1"),
        (lambda seed: OwnForward(ub.Dense(2, 4, 2), ub.Categorical(2), seed=seed), "forward of"),
        (
            lambda seed: ub.UDN(ub.Dense(2, 4, 1), Scaled(float(seed)), seed=seed),
            "likelihoods with different constants",
        ),
    ],
    ids=["half", "hook", "tensor hook", "forward", "buffers"],
)
def test_stacked_refuses_what_it_would_not_see(make, words):
    y = Y.float() if "likelihoods" in words else Y
    with pytest.raises(ValueError, match=f"Stacked does not take .*{words}"):
        ub.fit([make(0), make(1)], (X, y), **OPTIONS)


def test_stacked_refuses_a_module_at_several_depths():
    layers = same_layer()
    models = [ub.UDN(layers, ub.Categorical(2), seed=s).double() for s in range(2)]
    with pytest.raises(ValueError, match="several depths"):
        ub.fit(models, (X, Y), engine=Stacked(), **OPTIONS)


def test_a_rule_keeps_nothing_of_another_model():
    def rule():
        return RateAscent(speed=0.05, memory=2, youth=2)

    options = {"epochs": 6, "engine": Eager(), **OPTIONS}
    chunked, alone = [udn(0), udn(1)], udn(1)
    ub.fit(chunked, (X, Y), depth_rule=rule(), chunk=1, **options)
    ub.fit(alone, X, Y, depth_rule=rule(), **options)
    assert_same(chunked[1], alone, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_data": 5000}, "num_data is 5000, the data have 48 rows"),
        ({"schedule_every": "step", "schedule": lambda epoch: 1.0}, "needs a scheduler"),
        ({"depth_rule": RateAscent(), "depth_schedule": lambda epoch: 0.0}, "depth_schedule"),
    ],
    ids=["num_data", "schedule_every", "depth_schedule"],
)
def test_options_that_would_do_nothing_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ub.fit(udn(), X, Y, **options, **OPTIONS)


def test_one_of_everything_for_each_model():
    model = udn()
    other = ub.make_optimizer(udn(1))
    scheduler, models = torch.optim.lr_scheduler.StepLR(other, 1), [model, udn(1)]
    with pytest.raises(ValueError, match="scheduler is that of another optimiser"):
        ub.fit(model, X, Y, scheduler=scheduler, **OPTIONS)
    for engine in (Eager(), Stacked()):
        with pytest.raises(ValueError, match="twice"):
            ub.fit([model, model], (X, Y), engine=engine, chunk=1, **OPTIONS)
    with pytest.raises(ValueError, match="one optimiser cannot train several"):
        ub.fit(models, (X, Y), optimizer=other, engine=Eager(), chunk=1, **OPTIONS)
