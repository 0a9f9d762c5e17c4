"""Few rows go through a network in NumPy, and come to the same as in torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_friedman1
from torch import nn

import unbounded as ub
from unbounded import UDNClassifier, UDNRegressor
from unbounded.estimators import calibration, prepared
from unbounded.estimators.prepared import Prepared
from unbounded.layers import Dense, PreNormDense, ResidualDense, TableDense, TrunkDense
from unbounded.layers.dense import DenseLayer
from unbounded.layers.few_rows import JointPass, numpy_pass
from unbounded.likelihoods import Members
from unbounded.likelihoods.few_rows import expectations

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
SHORT = {"epochs": 3, "width": 8, "random_state": 0}


def networks():
    """Generators of all kinds with their number of columns."""
    sizes = {"in_features": st.integers(1, 5), "width": st.integers(1, 40)}
    sizes |= {"out_features": st.integers(1, 4), "shares_head": st.booleans()}
    sizes |= {"activation": st.sampled_from(["relu", "tanh", "gelu", "silu", "mish"])}
    waves = {"frequencies": st.integers(1, 5), "embedding": st.integers(2, 4)}
    waves |= {"embedded": st.one_of(st.none(), st.sets(st.integers(0, 0)).map(sorted))}
    members = {"members": st.integers(1, 3)}
    ramps = {**sizes, "in_features": st.just(3), "embedded": st.just([0, 2])}
    ramps |= {"knots": st.just([[-1.0, 0.0, 2.0], [0.5, 1.0]])}
    return st.one_of(
        *(st.builds(kind, **sizes) for kind in (Dense, PreNormDense)),
        st.builds(ResidualDense, **sizes, identity=st.booleans()),
        st.builds(TableDense, **sizes, **waves),
        st.builds(TrunkDense, **sizes, **waves, **members),
        st.builds(TableDense, **ramps),
        st.builds(TableDense, **ramps, steps=st.just([(1, 0.2), (1, -0.4), (2, 0.0)])),
        st.builds(TrunkDense, **ramps, **members, steps=st.just([(0, 0.1)])),
    )


@settings(max_examples=150, deadline=None)
@given(
    layers=networks(),
    depth=st.integers(1, 6),
    fixed=st.booleans(),
    rows=st.integers(1, 4),
    size=st.sampled_from([0.01, 1.0, 30.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_outputs_are_those_of_torch(layers, depth, fixed, rows, size, seed):
    family = ub.FixedDepth(depth) if fixed else ub.FiniteDepth(depth)
    likelihood = ub.Gaussian(ub.likelihoods.FixedNoise())
    if isinstance(layers, TrunkDense):
        likelihood = Members(likelihood, layers.members)
    frozen = ub.UDN(layers, likelihood, family, ub.GeometricDepth(0.5), seed=seed).freeze().double()
    random = torch.Generator().manual_seed(seed)
    for parameter in frozen.parameters():  # heads and factors that start at zero as well
        parameter.add_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    x = size * torch.randn(rows, layers.in_features, generator=random, dtype=torch.float64)
    in_numpy = numpy_pass(frozen.stack())
    assert in_numpy is not None
    before = x.clone()
    found, expected = in_numpy(x.numpy()), frozen(x)[0].numpy()
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found / scale, expected / scale, **CLOSE)
    assert torch.equal(x, before)


@settings(max_examples=60, deadline=None)
@given(
    layers=networks(),
    depths=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    fixed=st.booleans(),
    rows=st.integers(1, 4),
)
def test_several_networks_at_once_are_each_by_itself(layers, depths, fixed, rows):
    passes = []
    for seed, depth in enumerate(depths):
        family = ub.FixedDepth(depth) if fixed else ub.FiniteDepth(depth)
        likelihood = ub.Gaussian(ub.likelihoods.FixedNoise())
        if isinstance(layers, TrunkDense):
            likelihood = Members(likelihood, layers.members)
        model = ub.UDN(layers, likelihood, family, ub.GeometricDepth(0.5), seed=seed)
        frozen = model.freeze().double()
        random = torch.Generator().manual_seed(seed)
        for parameter in frozen.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
        passes.append(numpy_pass(frozen.stack()))
    x = np.random.default_rng(0).standard_normal((rows, layers.in_features))
    found = JointPass(passes)(x)
    assert len(found) == len(depths)
    for one, outputs in zip(passes, found, strict=True):
        expected = one(x)
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(outputs / scale, expected / scale, **CLOSE)


def test_activations_at_their_ends():
    ends = torch.tensor([[-800.0, -50.0, -1e-9, 0.0, 1e-9, 19.9, 20.1, 50.0, 800.0]]).double()
    for name in ("relu", "tanh", "gelu", "silu", "mish"):
        layer = DenseLayer(9, 9, ub.layers.dense.ACTIVATIONS[name]).double()
        with torch.no_grad():
            layer.weight.copy_(torch.eye(9))
            layer.bias.zero_()
            expected = layer(ends).numpy()
        with np.errstate(all="raise", under="ignore"):
            np.testing.assert_allclose(layer.in_numpy()(ends.numpy()), expected, **CLOSE)


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(80, 5, random_state=0)


def in_torch(monkeypatch, ask):
    """An answer without the short cut."""
    with monkeypatch.context() as changed:
        changed.setattr(prepared, "FEW_ROWS", 0)
        return ask()


def watched(monkeypatch):
    """Counts the passes in NumPy."""
    passes = []
    real = prepared.numpy_pass

    def counting(stack):
        run = real(stack)
        if run is not None:  # heads are run once for each member, also where layers are of all
            heads = run.heads
            run.heads = lambda states: passes.append(states.shape[1]) or heads(states)
        return run

    monkeypatch.setattr(prepared, "numpy_pass", counting)
    return passes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_members": 3},
        {"ensemble": "shared", "n_members": 3},
        {"preset": "paper"},
        {"depth": ub.FixedDepth(3)},
        {"likelihood": ub.Gaussian(ub.likelihoods.InputNoise())},
    ],
    ids=["one", "members", "shared", "paper", "fixed", "input noise"],
)
@pytest.mark.parametrize("bent", [False, True])
def test_numbers_are_those_of_torch(friedman, monkeypatch, options, bent):
    X, y = friedman
    passes = watched(monkeypatch)
    if bent:
        one_noise = ub.Gaussian(ub.likelihoods.LearntNoise(num_targets=2))
        options = {"likelihood": one_noise, **options}
    model = UDNRegressor(**{**SHORT, **options}).fit(X, np.c_[y, -y])
    if bent and options["likelihood"] is one_noise:
        for member in model.members_:
            curve = ([-1.0, 0.0, 0.5], [-1.0, 0.3, 1.0])
            member.likelihood.single.noise.bend([curve, None])
    for rows in (X[:1], X[:3], np.where(X[:2] > 0.6, np.nan, X[:2])):
        for ask in (
            lambda rows=rows: model.predict(rows, return_std=True),
            lambda rows=rows: model.predict_quantiles(rows),
            lambda rows=rows: model.predict_by_depth(rows, return_std=True),
        ):
            np.testing.assert_allclose(ask(), in_torch(monkeypatch, ask), **CLOSE)
    assert len(passes) == 9 * len(model.members_)


@pytest.mark.parametrize("labels", [False, True])
def test_probabilities_are_those_of_torch(friedman, monkeypatch, labels):
    X, y = friedman
    passes = watched(monkeypatch)
    targets = np.c_[y > 14, y > 10].astype(int) if labels else np.digitize(y, [10, 15])
    model = UDNClassifier(**SHORT).fit(X, targets)
    for ask in (model.predict_proba, model.predict_log_proba, model.decision_function):
        one = X[:1]
        np.testing.assert_allclose(ask(one), in_torch(monkeypatch, lambda: ask(one)), **CLOSE)  # noqa: B023
    assert passes == [1, 1, 1]


NOISES = {
    "fixed": ub.likelihoods.FixedNoise(2.0),
    "learnt": ub.likelihoods.LearntNoise(0.3, num_targets=2),
    "bent": ub.likelihoods.LearntNoise(num_targets=2, bends=[([0.0, 1.0], [0.5, 2.0]), None]),
    "input": ub.likelihoods.InputNoise(),
    "scaled": ub.likelihoods.ScaledInputNoise(num_targets=2),
}
MIXED = {name: ub.Gaussian(noise) for name, noise in NOISES.items()}
MIXED |= {"balanced": ub.likelihoods.BalancedGaussian(num_targets=2), "classes": ub.Categorical(4)}


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(MIXED)),
    depth=st.integers(1, 9),
    rows=st.integers(1, 4),
    size=st.sampled_from([0.01, 1.0, 30.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_mixtures_are_those_of_torch(name, depth, rows, size, seed):
    likelihood = MIXED[name]
    random = torch.Generator().manual_seed(seed)
    outputs = torch.randn(depth, rows, likelihood.num_outputs(2), generator=random).double() * size
    log_q = (3 * torch.randn(depth, generator=random)).double().log_softmax(0)
    given_outputs = outputs.clone()
    found = expectations(likelihood, log_q)
    prediction = likelihood.predict(outputs, log_q)
    if name == "classes":
        expected = {"probs": prediction.probs, "classes": prediction.classes}
    else:
        mean, std = prediction.mean, prediction.variance.sqrt()
        expected = {"mean": mean, "mean and std": torch.stack([mean, std])}
    if name == "bent":  # its scales follow the mean
        del expected["mean and std"]
    assert set(found) == set(expected)
    close = {"rtol": 1e-12, "atol": 1e-14 * max(1.0, size)}
    for what, function in found.items():
        values = expected[what].detach().numpy()
        np.testing.assert_allclose(function(outputs.numpy()), values, **close)
    assert torch.equal(outputs, given_outputs)
    if name == "classes":
        probs = found["probs"](outputs.numpy())
        assert probs.max() <= 1
        assert (found["classes"](outputs.numpy()) == probs.argmax(1)).all()
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-15)


class Halved(ub.Categorical):
    """What a user has derived from a likelihood of ours."""

    def class_log_probs(self, outputs):
        return super().class_log_probs(outputs / 2)


class Negated(ub.likelihoods.FixedNoise):
    """A noise whose means are not the outputs."""

    def split(self, outputs):
        means, scales = super().split(outputs)
        return -means, scales


@pytest.mark.parametrize(
    "likelihood",
    [Halved(3), ub.Gaussian(Negated()), ub.Bernoulli(), ub.MultiLabel(2)],
    ids=["derived", "noise", "one number", "labels"],
)
def test_likelihoods_that_numpy_does_not_know(likelihood):
    assert expectations(likelihood, torch.zeros(1).double()) == {}


def test_one_row_does_not_go_through_torch(friedman, monkeypatch):
    """A mean, with a deviation, probabilities and a class come without a mixture of torch's."""
    X, y = friedman
    numbers = UDNRegressor(**SHORT).fit(X, y)
    classes = UDNClassifier(**SHORT).fit(X, np.digitize(y, [10, 15]))
    both = numbers.predict(X, return_std=True)
    many = numbers.predict(X), classes.predict_proba(X), classes.predict(X)
    monkeypatch.setattr(Prepared, "predictions", None)
    one = X[7:8]
    np.testing.assert_allclose(numbers.predict(one), many[0][7:8], **CLOSE)
    np.testing.assert_allclose(classes.predict_proba(one), many[1][7:8], **CLOSE)
    assert classes.predict(one) == many[2][7:8]
    np.testing.assert_allclose(
        numbers.predict(one, return_std=True), [part[7:8] for part in both], **CLOSE
    )
    with pytest.raises(TypeError):  # all else has a mixture of torch's
        numbers.predict_quantiles(one)


def test_a_likelihood_of_another_kind_is_refused_for_one_row_too(friedman):
    X, y = friedman
    model = UDNRegressor(**SHORT).fit(X, y)
    classes = UDNClassifier(**SHORT).fit(X, y > 14)
    model.model_, model.members_ = classes.model_, classes.members_
    for rows in (X, X[:1]):
        with pytest.raises(TypeError, match="predicts no mean"):
            model.predict(rows)


class Doubled(DenseLayer):
    """What a user has derived from a layer of ours."""

    def forward(self, input):
        return 2 * super().forward(input)


def derived(in_features, out_features):
    return ub.CustomLayers(
        lambda depth: Doubled(in_features if depth == 1 else 8, 8, torch.relu),
        lambda depth: nn.Linear(8, out_features),
    )


class Leaky:
    """An activation without a hash, as a plain dataclass is."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, h):
        return h.relu() - 0.1 * (-h).relu()

    def __eq__(self, other):
        return type(other) is Leaky


@pytest.mark.parametrize(
    "layers",
    [
        derived,
        lambda i, o: Dense(i, 8, o, activation=lambda h: h.relu() + 1),
        lambda i, o: Dense(i, 8, o, activation=Leaky()),
    ],
    ids=["class", "activation", "no hash"],
)
def test_what_is_not_known_is_left_to_torch(friedman, monkeypatch, layers):
    X, y = friedman
    model = UDNRegressor(**SHORT, layers=layers).fit(X, y)
    assert numpy_pass(Prepared.of(model.model_).frozen.stack()) is None
    one = X[:1]
    found = model.predict(one)
    np.testing.assert_array_equal(found, in_torch(monkeypatch, lambda: model.predict(one)))


def test_layers_of_ones_own_may_take_part(friedman, monkeypatch):
    class Shifted(nn.Linear):
        def forward(self, input):
            return super().forward(input).tanh() + 1

        def in_numpy(self):
            weight, bias = self.weight.numpy(), self.bias.numpy()
            return lambda x: np.tanh(x @ weight.T + bias) + 1

    X, y = friedman
    passes = watched(monkeypatch)
    layers = ub.CustomLayers(
        lambda depth: Shifted(5 if depth == 1 else 8, 8), lambda depth: nn.Linear(8, 1)
    )
    model = UDNRegressor(**SHORT, layers=layers).fit(X, y)
    ask = lambda: model.predict(X[:1])  # noqa: E731
    np.testing.assert_allclose(ask(), in_torch(monkeypatch, ask), **CLOSE)
    assert passes == [1]


def swap_hook(module):
    next(iter(module._forward_hooks))  # there is one
    module._forward_hooks.clear()
    module.register_forward_hook(lambda m, given, output: output + 5)


CHANGES = {
    "hook inside": lambda m: m.network.hidden["1"].waves.register_forward_hook(
        lambda m, given, output: output + 1
    ),
    "another hook": lambda m: swap_hook(m.network.heads["1"]),
    "forward": lambda m: setattr(
        m.network.heads["1"], "forward", lambda state: state.sum(1, keepdim=True).expand(-1, 2)
    ),
    "activation": lambda m: setattr(m.network.hidden["1"], "activation", torch.cos),
    "hook before": lambda m: m.network.heads["1"].register_forward_pre_hook(
        lambda m, given: (given[0] + 1,)
    ),
    "values": lambda m: m.network.heads["1"].bias.data.add_(1),
    "bias": lambda m: setattr(m.network.heads["1"].bias, "data", torch.tensor([5.0, 0.0])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_model_is_seen_by_one_row(friedman, monkeypatch, change):
    X, y = friedman
    model = UDNRegressor(**SHORT).fit(X, y)
    model.model_.network.heads["1"].register_forward_hook(lambda m, given, output: output + 3)
    one = X[:1]
    before = model.predict(one)
    change(model.model_)
    after = model.predict(one)
    assert not np.allclose(before, after, rtol=1e-4)
    np.testing.assert_allclose(after, in_torch(monkeypatch, lambda: model.predict(one)), **CLOSE)


def test_hooks_for_all_modules_are_called(friedman):
    X, y = friedman
    model = UDNRegressor(**SHORT).fit(X, y)
    before, seen = model.predict(X[:1]), []
    hook = nn.modules.module.register_module_forward_hook(lambda *given: seen.append(given[0]))
    try:
        after = model.predict(X[:1])
    finally:
        hook.remove()
    assert len(seen) >= 2 * len(model.depths_)
    np.testing.assert_allclose(after, before, **CLOSE)


@pytest.mark.parametrize("place", [5, 70_000, 140_000])
def test_a_value_anywhere_in_a_long_tensor_is_watched(place):
    made = ub.UDN(Dense(1100, 128, 1), ub.Gaussian(), ub.FixedDepth(1))
    first = Prepared.of(made)
    weight = made.network.hidden["1"].weight
    assert weight.numel() > place
    assert Prepared.of(made) is first
    weight.data.view(-1)[place] += 0.5
    again = Prepared.of(made)
    assert again is not first
    assert float(again.frozen.hidden[0].weight.view(-1)[place]) == weight.detach().view(-1)[place]


@pytest.mark.parametrize("calibrate", [False, True])
def test_held_out_rows_are_predicted_once(friedman, monkeypatch, calibrate):
    X, y = friedman
    real, rows = calibration.predict, []

    def counting(model, x, batch_size):
        rows.append(len(x))
        return real(model, x, batch_size)

    monkeypatch.setattr(calibration, "predict", counting)
    likelihood = ub.Gaussian()
    model = UDNRegressor(**SHORT, n_members=2, calibrate=calibrate, likelihood=likelihood)
    model.fit(X, y)
    assert [count for count in rows if count == 12] == [12] * 2
    # Noise that follows the mean is looked for in what was learnt, too.
    assert [count for count in rows if count != 12] == [68] * 2 * calibrate
    # What is kept of them is of the model as it is now, noise calibrated.
    held = rows_of(model, X, y)
    mean, std = model.predict(held[0], return_std=True)
    # Caution widened the noise by a standard error of its logarithm, which scores do not undo.
    wider = np.exp(1 / np.sqrt(2 * 12)) if calibrate else 1.0
    expected = np.sort(np.abs(held[1] - mean) / std) * wider
    np.testing.assert_allclose(model.conformal_scores_[:, 0], expected, rtol=1e-4)


def rows_of(model, X, y):
    """The rows that the scores say were held out: fitted anew, with another eye on the split."""
    from unbounded.estimators.rows import merge, split

    rng = np.random.RandomState(model.random_state)
    rows = merge(X, y[:, None], np.ones(len(y)))
    _, held = split(len(y), model.validation_fraction, None, rng)
    return rows.x[held], rows.y[held, 0]
