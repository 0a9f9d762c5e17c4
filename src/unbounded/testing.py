"""Contract suites for families, priors, likelihoods, layers and engines: ours and a user's own.

Each takes a function that builds the part, and raises an AssertionError that says what is wrong:

    >>> from unbounded import testing
    >>> testing.check_family(lambda: MyFamily())
"""

import copy
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded import files
from unbounded.depth import NO_MASS, DepthFamily, FiniteDepth, TruncatedPoisson, check_unbounded
from unbounded.engines import Eager, Engine
from unbounded.engines.base import TERMS as _TERMS
from unbounded.layers import Dense, Layers
from unbounded.likelihoods import Categorical, Likelihood
from unbounded.model import UDN
from unbounded.priors import DepthPrior, WeightPrior
from unbounded.training import Callback, Trainer, fit

_ROWS = 48


def check_family(make: Callable[[], DepthFamily]) -> None:
    """Definition 1 of the paper, leading axes, half precision, and training alone and stacked."""
    family = make().double()
    depth = family.max_depth()
    log_q = family.log_probs().detach()
    _same(log_q.shape, (depth,), "log_probs() has one number for each depth up to max_depth()")
    _close(log_q.exp().sum(), torch.ones(()).double(), "q sums to one")
    _true(bool(log_q[-1] > NO_MASS / 2), "the last depth of the support has mass")
    first = family.first_depth()
    _true(bool((log_q[: first - 1].exp() == 0).all()), "no mass below first_depth()")
    if family.is_unbounded and family.bound is None:
        check_unbounded(family)
    if family.bound is not None:
        _true(depth <= family.bound, "no member reaches beyond its bound")
    at = {
        name: torch.stack([tensor.detach()] * 3).requires_grad_(tensor.requires_grad)
        for name, tensor in family.numbers().items()
    }
    wide = family.log_probs_at(at, depth + 3)
    _same(wide.shape, (3, depth + 3), "scores takes leading axes")
    _same(family.end(at, depth + 3).tolist(), [depth] * 3, "end takes leading axes")
    _close(wide[1, :depth].exp(), log_q.exp(), "a member of many has the lone one's q")
    _true(bool((wide[:, depth:].exp() == 0).all()), "no mass beyond the end")
    if family.bound is None and depth > 1:
        short = family.end(at, depth - 1)
        _true(bool((short > depth - 1).all()), "an end beyond size is told to be so")
    free = [tensor for name, tensor in at.items() if tensor.requires_grad]
    if free:
        weights = torch.linspace(-1, 1, depth + 3).double()
        (wide.exp() * weights).sum().backward()
        finite = all(t.grad is not None and bool(torch.isfinite(t.grad).all()) for t in free)
        _true(finite, "q is differentiable in every parameter")
    half = make().bfloat16()
    kept = all(p.dtype == torch.float32 for p in half.parameters())
    _true(kept, "λ stays in single precision at least")
    prior = None if family.is_unbounded else _Flat()
    _check_training(lambda seed: _model(seed, depth=make(), depth_prior=prior))
    _check_file(_model(0, depth=make(), depth_prior=prior), "depth", make)


def check_depth_prior(make: Callable[[], DepthPrior]) -> None:
    """Normalised over 1, 2, …, double precision, and elementwise."""
    prior = make()
    last = 4000 if prior.max_depth is None else prior.max_depth
    depths = torch.arange(-1, last + 3)
    log_p = prior.log_prob(depths)
    _same(log_p.shape, depths.shape, "log_prob has the shape of its argument")
    _same(log_p.dtype, torch.float64, "log_prob is in double precision")
    _true(bool(torch.isinf(log_p[:2]).all()), "no mass below depth 1")
    _true(not bool(torch.isnan(log_p).any()), "log_prob is never NaN")
    total = log_p.exp().sum()
    _true(abs(float(total) - 1) < 1e-3, f"p sums to one, got {float(total):.6f}")
    square = depths[2:8].reshape(2, 3)
    _close(prior.log_prob(square), log_p[2:8].reshape(2, 3), "log_prob is elementwise")


def check_weight_prior(make: Callable[[], WeightPrior]) -> None:
    """One KL for each tensor, the gradient that `precision` promises, and training."""
    prior = make()
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((3, 2), (4,))]
    leaves = [tensor.requires_grad_() for tensor in tensors]
    kl = prior.kl(leaves)
    _same(kl.shape, (2,), "kl gives one number for each tensor")
    alone = torch.stack([prior.kl([leaf])[0] for leaf in leaves])
    _close(kl.detach(), alone.detach(), "the KL of a tensor does not depend on others")
    kl.sum().backward()
    _true(all(leaf.grad is not None for leaf in leaves), "kl is differentiable")
    if prior.precision is not None:
        for leaf in leaves:
            assert leaf.grad is not None
            expected = leaf.detach() * prior.precision
            _close(leaf.grad, expected, "the gradient of the KL is precision · ν")
    _check_training(lambda seed: _model(seed, weight_prior=prior))


def check_likelihood(
    make: Callable[[], Likelihood],
    y: Tensor,
    *,
    num_outputs: int | None = None,
    layers: Callable[[], Layers] | None = None,
    x: Tensor | None = None,
) -> None:
    """Shapes, independence of rows, gradient, prediction, scores, and training.

    Args:
        make: builds the likelihood.
        y: some targets, `(rows, …)`, from which it can learn; at least 8 rows.
        num_outputs: what a head must give; by default what the likelihood says for one target.
        layers: builds layers for it, with inputs `x`; dense ones by default. Needed where the
            output of a head has several axes (`output_axes`): all but the last are those of y.
        x: inputs for these layers, `(rows, …)`.
    """
    likelihood = make().double()
    rows = y.shape[0]
    _true(rows >= 8, "check_likelihood needs at least 8 rows")
    y = y.double() if y.is_floating_point() else y
    targets = likelihood.check_targets(y)
    size = likelihood.num_outputs(1) if num_outputs is None else num_outputs
    generator = torch.Generator().manual_seed(0)
    shape = (3, rows, *y.shape[1 : likelihood.output_axes], size)
    outputs = torch.randn(*shape, generator=generator, dtype=torch.float64)
    likelihood.check_outputs(outputs, targets)
    leaf = outputs.clone().requires_grad_()
    log_lik = likelihood.log_lik(leaf, targets)  # has a shape or says why not
    _true(bool(torch.isfinite(log_lik).all()), "log_prob is finite")
    log_lik.sum().backward()
    _true(leaf.grad is not None, "log_prob is differentiable in the outputs")
    one = likelihood.log_lik(outputs[1:2, 2:5], targets[2:5])
    _close(one, log_lik[1:2, 2:5].detach(), "rows and depths are independent of each other")
    log_q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    prediction = likelihood.predict(outputs, log_q)
    mixed = (log_q[:, None] + log_lik.detach()).logsumexp(0)
    if likelihood.mixes_rows:
        _close(prediction.log_prob(targets), mixed, "the prediction is the mixture over depths")
    sure = likelihood.predict(outputs[:1], log_q.new_zeros(1)).log_prob(targets)
    _close(sure, log_lik[0].detach(), "the prediction of one depth is its log-likelihood")
    held = likelihood.observations(targets)
    if held is None:
        _same(likelihood.unit, "rows", "n counts rows where a row is one observation")
    else:
        _same(held.shape, (rows,), "observations gives a number for each row")
    score = likelihood.score(prediction, targets).detach()
    _same(score.shape, (rows,), "score gives a number for each row")
    _true(math.isfinite(likelihood.finish_score(float(score.double().mean()))), "scores are finite")
    if x is None or layers is None:
        x, built = torch.randn(rows, 2, generator=generator), Dense(2, 6, size)
    else:
        built = layers()  # type: ignore[assignment]
    _check_training(
        lambda seed: UDN(built, make(), TruncatedPoisson(1.5), seed=seed).double(), (x, y)
    )
    _check_file(UDN(built, make()), "likelihood", make, x)


def check_layers(
    make: Callable[[], Layers],
    x: Tensor,
    *,
    likelihood: Callable[[], Likelihood] | None = None,
    y: Tensor | None = None,
) -> None:
    """Births by seed and depth alone, the faster way is the plain one, and training.

    Args:
        make: builds the generator.
        x: some inputs, `(rows, …)`, at least 8.
        likelihood: for its heads; a `Categorical` of as many classes as heads give numbers.
        y: targets for it; classes in turn by default.
    """
    rows = x.shape[0]
    _true(rows >= 8, "check_layers needs at least 8 rows")
    sample = UDN(make(), Categorical(2), FiniteDepth(3), _Flat()).eval()  # whatever heads give
    outputs = sample(x)
    _same(outputs.shape[:2], (3, rows), "outputs are (depth, batch, *event)")
    size = outputs.shape[-1]
    build = (lambda: Categorical(max(2, size))) if likelihood is None else likelihood
    y = torch.arange(rows) % size if y is None else y

    def model(seed: int) -> UDN:
        made = UDN(make(), build(), TruncatedPoisson(1.5), seed=seed)
        return made if make().integer_inputs else made.double()

    one, other = model(3), model(3)
    for name, tensor in one.state_dict().items():
        _true(torch.equal(tensor, other.state_dict()[name]), f"{name} depends on the seed alone")
    fast = sample(x)
    seen: list[int] = []
    handles = [
        head.register_forward_hook(lambda *_: seen.append(1))
        for head in sample.network.heads.values()
    ]
    slow = sample(x)
    for handle in handles:
        handle.remove()
    _true(len(seen) > 0, "hooks are called")
    _close(fast, slow, "the faster way gives what the modules give")
    _check_training(model, (x, y), batch_norm=True)


def check_engine(make: Callable[[], Engine]) -> None:
    """The same weights, history and best epochs as `Eager`, and resuming bit for bit.

    Where it tells of single steps (`step_terms`), these average to the rows of their epochs.
    """
    _check_training(lambda seed: _model(seed), engine=make)

    def train(path: Path, epochs: int) -> dict[str, Tensor]:
        models = [_model(seed) for seed in range(2)]
        options = {"checkpoint": path, "resume": True, **_options()}
        engine = make()
        tells = type(engine).step_terms is not Engine.step_terms
        callbacks = [_Steps()] if tells else []
        fit(models, _data(), epochs=epochs, engine=engine, callbacks=callbacks, **options)
        return models[1].state_dict()

    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder) / "whole.ckpt", 4)
        train(Path(folder) / "cut.ckpt", 2)
        cut = train(Path(folder) / "cut.ckpt", 4)
    for name, tensor in whole.items():
        _true(torch.equal(tensor, cut[name]), f"{name} is resumed bit for bit")


class _Steps(Callback):
    """Checks at the end of each epoch that its steps were told, and average to its rows."""

    def __init__(self) -> None:
        self.seen: list[list[dict[str, Any] | None]] = []

    def on_step_end(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        self.seen.append(trainer.step_rows)

    def on_epoch_end(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        for number, epoch in enumerate(trainer.rows):
            steps = [each[number] for each in self.seen if each[number] is not None]
            assert epoch is not None
            for term in _TERMS:
                mean = sum(step[term] for step in steps if step) / max(1, len(steps))
                found, expected = torch.tensor(mean), torch.tensor(epoch[term])
                _close(found, expected, f"{term} of an epoch's steps averages to its row", 1e-4)
        self.seen.clear()


class _Flat(DepthPrior):
    """Equal mass wherever a bounded family may reach; for checks alone."""

    def log_prob(self, depth: Tensor) -> Tensor:
        """Zero from depth 1 on: not normalised."""
        return torch.zeros_like(depth, dtype=torch.float64).where(depth >= 1, -torch.inf)


def _model(seed: int, **parts: Any) -> UDN:
    parts = {"depth": TruncatedPoisson(1.5), **parts}
    parts = {k: v for k, v in parts.items() if v is not None}
    return UDN(Dense(2, 6, 2), Categorical(2), seed=seed, **parts).double()


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(_ROWS, 2, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def _options() -> dict[str, Any]:
    return {"batch_size": 16, "lr": 0.02, "depth_lr_ratio": 5.0, "progress": False}


def _check_training(
    make: Callable[[int], UDN],
    data: tuple[Tensor, Tensor] | None = None,
    *,
    engine: Callable[[], Engine] | None = None,
    batch_norm: bool = False,
) -> None:
    """Models at once (or by an engine) end as models alone do."""
    data = _data() if data is None else data
    options = {**_options(), "validation": data}
    if batch_norm or data[0].shape[0] < 16:
        options["batch_size"] = data[0].shape[0] // 2
    together, alone = [make(0), make(1)], make(1)
    results = fit(together, data, epochs=3, engine=None if engine is None else engine(), **options)
    result = fit(alone, *data, epochs=3, engine=Eager(), **options)
    _same(results[1].best_epoch, result.best_epoch, "the best epoch is the lone model's")
    before, after = alone.state_dict(), together[1].state_dict()
    _same(list(before), list(after), "the layers are the lone model's")
    for name, tensor in before.items():
        _close(after[name], tensor, f"{name} ends as in a lone model", 1e-4)


def _check_file(model: UDN, part: str, make: Callable[[], Any], x: Tensor | None = None) -> None:
    """Saving and loading gives the same outputs, with the part passed in if it is one's own."""
    x = torch.randn(5, 2) if x is None else x
    x = x.to(model.anchor.dtype) if x.is_floating_point() else x
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.udn"
        files.save(model, path)
        parts = {part: copy.deepcopy(make())}
        if isinstance(model.depth_prior, _Flat):
            parts["depth_prior"] = model.depth_prior
        loaded = files.load(path, **parts)
    _close(loaded(x), model.eval()(x), "a saved model gives the same outputs")
    _close(
        loaded.depth_log_probs(), model.depth_log_probs(), "a saved model has the same posterior"
    )


def _true(holds: bool, claim: str) -> None:
    if not holds:
        raise AssertionError(f"does not hold: {claim}")


def _same(found: Any, expected: Any, claim: str) -> None:
    if isinstance(found, torch.Size | Sequence) and not isinstance(found, str):
        found, expected = list(found), list(expected)
    if found != expected:
        raise AssertionError(f"does not hold: {claim}; expected {expected}, got {found}")


def _close(found: Tensor, expected: Tensor, claim: str, tolerance: float = 1e-6) -> None:
    try:
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        raise AssertionError(f"does not hold: {claim}; {error}") from None
