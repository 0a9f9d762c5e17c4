"""Transformer layers, tokens, inputs with parts and streams."""

import math

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop

import unbounded as ub
from unbounded import growth, testing, trees
from unbounded.data.sequences import Hops, RandomWindows, Text, WordProblem, table, windows
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.layers.transformer import HeadsTogether
from unbounded.parallel import Processes
from unbounded.steps.objective import Gradient
from unbounded.steps.options import StepOptions

V = 7


def tokens(rows=6, time=9, seed=0, vocabulary=V):
    return torch.randint(vocabulary, (rows, time), generator=torch.Generator().manual_seed(seed))


def model(depth=None, *, seed=0, likelihood=None, **arguments):
    layers = ub.TransformerLayers(V, 16, heads=2, **arguments)
    found = ub.UDN(layers, likelihood or ub.Tokens(V), depth or ub.TruncatedPoisson(1.5), seed=seed)
    return stirred(found.double())


def stirred(found):
    """Blocks that do something: newborn ones are the identity."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in found.network.parameters():
            parameter += 0.2 * torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
    return found


def shifted(rows=32, time=8, seed=0):
    x = tokens(rows, time, seed)
    y = x.roll(1, 1)
    y[:, 0] = -100
    return x, y


VARIANTS = {
    "rotary": {},
    "learnt": {"positions": "learnt", "max_length": 12},
    "without": {"positions": "none"},
    "shared": {"shares_head": True},
    "tied": {"tied": True},
    "tied and shared": {"tied": True, "shares_head": True},
}


@pytest.mark.parametrize("name", ["rotary", "learnt", "tied and shared"])
def test_layers_pass_their_contract(name):
    (x, y), arguments = shifted(8, 5), VARIANTS[name]
    testing.check_layers(
        lambda: ub.TransformerLayers(V, 8, heads=2, expansion=2, **arguments),
        x,
        likelihood=lambda: ub.Tokens(V),
        y=y,
    )


@pytest.mark.parametrize(
    ("mix", "score"),
    [("token", "perplexity"), ("sequence", "bits_per_character"), ("token", "accuracy")],
)
def test_tokens_pass_their_contract(mix, score):
    y = tokens(8, 3)
    y[:4, 1] = -100
    testing.check_likelihood(
        lambda: ub.Tokens(V, mix=mix, score=score),
        y,
        num_outputs=V,
        layers=lambda: ub.TransformerLayers(V, 8, heads=2, expansion=2),
        x=tokens(8, 3),
    )


@pytest.mark.parametrize("arguments", VARIANTS.values(), ids=VARIANTS)
def test_no_future_token_changes_the_past(arguments):
    net, x = model(**arguments), tokens()
    other = x.clone()
    other[:, 5:] = (other[:, 5:] + 1) % V
    before, after = net(x), net(other)
    assert torch.equal(before[:, :, :5], after[:, :, :5])
    assert not torch.allclose(before[:, :, 5:], after[:, :, 5:])
    free = model(causal=False, **arguments)
    assert not torch.allclose(free(x)[:, :, :5], free(other)[:, :, :5])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["rotary", "learnt"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(causal, positions, side):
    net, x = model(causal=causal, positions=positions, max_length=20), tokens(4, 6)
    pad, mask = torch.full((4, 3), 2), torch.ones(4, 6, dtype=torch.bool)
    parts = [(pad, x), (torch.zeros_like(pad).bool(), mask)]
    if side == "right":
        parts = [part[::-1] for part in parts]
    padded, seen = (torch.cat(part, 1) for part in parts)
    place = slice(3, None) if side == "left" else slice(6)
    torch.testing.assert_close(net({"tokens": padded, "mask": seen})[:, :, place], net(x))
    torch.testing.assert_close(net((padded, seen))[:, :, place], net(x))
    # A mask of pairs says the same where positions need no telling apart.
    if side == "right":
        pairs = seen[:, None, :].expand(-1, 9, -1)
        torch.testing.assert_close(net((padded, pairs))[:, :, place], net(x))


def test_a_newborn_block_is_the_identity_and_costs_what_its_maps_cost():
    net = ub.UDN(ub.TransformerLayers(V, 16, heads=2), ub.Tokens(V), ub.FiniteDepth(4), Flat())
    states = net.network.states(tokens(), 4)
    assert all(torch.equal(state, states[0]) for state in states)
    assert bool((net(tokens()) == 0).all())  # heads of their own: all tokens alike
    block = net.network.hidden["3"]
    hidden, heads = (kl.detach() for kl in net.weight_kl(1, 4))
    maps = (block.attend.weight, block.up.weight)  # no biases, and norms at γ = 0 cost nothing
    expected = sum(float(weight.detach().square().sum()) / 2 for weight in maps)
    assert math.isclose(float(hidden[2]), expected, rel_tol=1e-5)
    assert bool((heads == 0).all())


class Flat(testing._Flat):
    """Equal mass for all depths."""


def test_births_leave_older_depths_as_they_are():
    for arguments in ({}, {"shares_head": True}, {"tied": True, "shares_head": True}):
        net = model(ub.TruncatedNormal(2.0, 0.5), **arguments)
        x = tokens()
        before, size = net(x), len(dict(net.named_parameters()))
        optimizer = ub.make_optimizer(net)
        net.depth.put(5.0, 0.5)
        growth.grow(net, optimizer)
        after = net(x)
        assert after.shape[0] > before.shape[0]
        assert torch.equal(after[: before.shape[0]], before)
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        assert len({id(p) for p in owned}) == len(owned) == len(dict(net.named_parameters()))
        assert len(owned) > size
        if arguments.get("tied"):
            heads = net.network.heads.values()
            embedding = net.network.hidden["1"].embedding.tokens
            assert all(head.linear.weight is embedding for head in heads)


def test_tokens_are_torchs_cross_entropy():
    outputs = torch.randn(3, 5, 4, V, generator=torch.Generator().manual_seed(0)).double()
    y = tokens(5, 4)
    y[0, 2:] = y[3, 0] = -100
    likelihood = ub.Tokens(V)
    found = likelihood.log_lik(outputs, y)
    for depth in range(3):
        logits = outputs[depth].transpose(1, 2)
        expected = -F.cross_entropy(logits, y, reduction="none").sum(1)
        torch.testing.assert_close(found[depth], expected)
    assert likelihood.observations(y).tolist() == [2, 4, 4, 3, 4]
    log_q = torch.tensor([0.2, 0.3, 0.5]).double().log()
    by_token = likelihood.predict(outputs, log_q)
    by_sequence = ub.Tokens(V, mix="sequence").predict(outputs, log_q)
    counts = y != -100
    each = outputs.log_softmax(-1).gather(-1, y.clamp(min=0).expand(3, -1, -1)[..., None])[..., 0]
    mixed = (log_q[:, None, None] + each).logsumexp(0)
    torch.testing.assert_close(by_token.log_prob(y), (mixed * counts).sum(1))
    whole = (log_q[:, None] + (each * counts).sum(-1)).logsumexp(0)
    torch.testing.assert_close(by_sequence.log_prob(y), whole)
    for prediction in (by_token, by_sequence):
        found = prediction.token_log_probs(y)
        torch.testing.assert_close(found.sum(1), prediction.log_prob(y))
        assert bool((found[~counts] == 0).all())
    torch.testing.assert_close(by_token.probs.sum(-1), torch.ones(5, 4).double())


def test_the_loss_is_per_token_and_pieces_add_up():
    net = model(ub.FixedDepth(2))
    x, y = shifted(8, 6)
    y[:5, 2:] = -100  # rows of different lengths
    total = int((y != -100).sum())
    outputs = net(x)[-1].detach()
    nats = F.cross_entropy(outputs.transpose(1, 2), y)
    kl = sum(float(part.detach().sum()) for part in net.weight_kl(2, 2))
    kl -= float(net.depth_prior.log_prob(torch.tensor(2)))
    terms = net.elbo(x, y, total)
    loss = float(terms.loss(total).detach())
    assert math.isclose(loss, float(nats) + kl / total, rel_tol=1e-9)
    grads = []
    for micro in (1, 3):
        one = model(ub.FixedDepth(2))
        info = ub.step(
            one, ub.make_optimizer(one, torch.optim.SGD), x, y, total, micro_batches=micro
        )
        assert math.isclose(info.loss, float(nats) + kl / total, rel_tol=1e-9)
        grads.append([p.detach() for p in one.network.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_scores_are_means_over_tokens():
    net = model(ub.FixedDepth(1), likelihood=ub.Tokens(V, score="bits_per_character"))
    x, y = shifted(8, 6)
    y[:5, 2:] = -100
    nats = F.cross_entropy(net(x)[-1].detach().transpose(1, 2), y)
    result = ub.fit(
        net,
        x,
        y,
        validation=(x, y),
        monitor={"test": (x, y)},
        epochs=1,
        lr=1e-12,
        progress=False,
        batch_size=8,
    )
    row = result.history.rows[-1]
    assert math.isclose(row["val_bits_per_character"], float(nats) / math.log(2), rel_tol=1e-6)
    assert math.isclose(row["test_log_score"], -float(nats), rel_tol=1e-6)


def test_one_pass_learns_and_files_keep_it(tmp_path):
    x, y = shifted(64)
    for arguments in ({}, {"tied": True, "shares_head": True}):
        layers = ub.TransformerLayers(V, 8, heads=2, **arguments)
        net = ub.UDN(layers, ub.Tokens(V), ub.TruncatedNormal(2.0, 1.0, limit=4))
        result = ub.fit(
            net,
            x,
            y,
            validation=shifted(16, seed=1),
            epochs=10,
            lr=0.01,
            batch_size=16,
            depth_rule=ub.HeldOutAscent(),
            progress=False,
        )
        assert result.best_score < 0.9 * V
        ub.save(net, tmp_path / "model.udn")
        loaded = ub.load(tmp_path / "model.udn")
        assert torch.equal(loaded(x), net.eval()(x))
        outputs, probs = net.freeze()(x)
        assert torch.equal(outputs, net(x))
        torch.testing.assert_close(probs, net.depth_log_probs().exp())


@pytest.mark.parametrize("kind", ["arrays", "draw", "iterable"])
def test_resuming_is_bit_for_bit(tmp_path, kind):
    def draw(generator):
        x = torch.randint(V, (8, 6), generator=generator)
        return x, x.roll(1, 1)

    def data():
        if kind == "draw":
            return ub.Stream(draw, 5, 4000)
        if kind == "iterable":
            generator = torch.Generator().manual_seed(3)
            return ub.Stream([draw(generator) for _ in range(40)], 5, 4000)
        return shifted(24)

    def train(path, epochs):
        layers = ub.TransformerLayers(V, 8, heads=2, tied=True, dropout=0.2)
        net = ub.UDN(layers, ub.Tokens(V), ub.TruncatedNormal(2.0, 1.0))
        rest = {"validation": shifted(16)} if kind == "arrays" else {}
        ub.fit(
            net,
            data(),
            epochs=epochs,
            batch_size=8,
            lr=0.01,
            checkpoint=path,
            resume=True,
            depth_rule=ub.HeldOutAscent(reference=(2.0, 1.0)),
            average=0.9,
            progress=False,
            **rest,
        )
        return net.state_dict()

    whole = train(tmp_path / "whole.ckpt", 6)
    train(tmp_path / "cut.ckpt", 3)
    cut = train(tmp_path / "cut.ckpt", 6)
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_rule_looks_at_fresh_rows_before_they_are_trained_on():
    seen, moved_by = [], []

    class Noting(ub.HeldOutAscent):
        def look(self, model, log_lik, guess, weights):
            seen.append((log_lik.clone(), guess, weights))
            super().look(model, log_lik, guess, weights)

        def settle(self, model, weights):
            moved_by.append(weights)
            super().settle(model, weights)

    def draw(generator):
        x = torch.randint(V, (4, 5), generator=generator)
        y = x.roll(1, 1)
        y[0, 1:] = -100
        return x, y

    layers = ub.TransformerLayers(V, 8, heads=2)
    net = ub.UDN(layers, ub.Tokens(V), ub.TruncatedNormal(2.0, 1.0))
    fresh = ub.UDN(layers, ub.Tokens(V), ub.TruncatedNormal(2.0, 1.0))
    ub.fit(
        net,
        ub.Stream(draw, 1, 1000),
        epochs=2,
        depth_rule=Noting(reference=(2.0, 1.0)),
        progress=False,
    )
    x, y = draw(torch.Generator().manual_seed(net.seed))
    log_lik, guess, weights = seen[0]
    assert moved_by[-1].tolist() == [4, 4, 4, 4]  # other rows have these places next time
    assert weights.tolist() == [1, 5, 5, 5]
    expected = fresh.likelihood.log_lik(fresh(x), y).detach() / weights
    torch.testing.assert_close(log_lik, expected.double())
    torch.testing.assert_close(guess, ub.Tokens(V).guess(y) / weights)


@pytest.mark.parametrize("engine", [Eager, lambda: Graphs(lag=0)], ids=["eager", "graphs"])
def test_streams_of_plain_rows(engine):
    def draw(generator):
        x = torch.randn(16, 2, generator=generator)
        return x, (x[:, 0] * x[:, 1] > 0).long(), torch.ones(16)

    net = ub.UDN(ub.PreNormDense(2, 8, 2), ub.Categorical(2), ub.TruncatedNormal(1.0, 0.5))
    result = ub.fit(
        net,
        ub.Stream(draw, 4, 2000),
        epochs=4,
        average=0.9,  # whose q lags behind
        depth_rule=ub.HeldOutAscent(),
        engine=engine(),
        progress=False,
    )
    assert result.history.rows[-1]["depth_mean"] > 2  # it leapt to the reference
    with pytest.raises(ValueError, match="a Stream has no end"):
        ub.fit(net, ub.Stream(draw, 4, 100), validation=ub.Stream(draw, 4, 100), epochs=1)


@pytest.mark.parametrize("engine", [Eager, Graphs])
@pytest.mark.parametrize(("there", "due"), [(5, 6), (6, 9)])
def test_a_stream_that_ends_says_so(engine, there, due):
    net = ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2))
    stream = ub.Stream([(torch.randn(4, 2), torch.zeros(4).long())] * there, 3, 100)
    with pytest.raises(ValueError, match=f"ended after {there} of the {due} batches"):
        ub.fit(net, stream, epochs=4, engine=engine(), progress=False)


def test_a_budget_makes_a_stream_and_its_epochs():
    for wrong in ((0, 1), (10, 0)):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            ub.Stream.for_budget([], *wrong, looks=1)
    stream, epochs = ub.Stream.for_budget([], budget=1000, batch=30, looks=10)
    assert stream.num_data == 1000
    assert 1000 <= stream.steps * epochs * 30 < 1000 + 30 * stream.steps
    assert epochs <= 10


class Masked(nn.Module):
    takes_context = True

    def __init__(self, inputs):
        super().__init__()
        self.linear = nn.Linear(inputs, 4)

    def forward(self, state, context):
        values = state["values"] if isinstance(state, dict) else state
        return torch.tanh(self.linear(values)) * context["mask"]


def test_layers_of_ones_own_take_parts():
    layers = ub.CustomLayers(
        hidden=lambda depth: Masked(2 if depth == 1 else 4), head=lambda depth: nn.Linear(4, 2)
    )
    rows = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
    x = {"values": rows, "mask": torch.ones(24, 1)}
    y = (rows[:, 0] > 0).long()
    net = ub.UDN(layers, ub.Categorical(2))
    data = (x, y)
    result = ub.fit(net, *data, validation=data, epochs=2, batch_size=8, progress=False)
    assert result.history.rows[-1]["val_accuracy"] >= 0
    whole = ub.predict(net, x).probs
    torch.testing.assert_close(ub.predict(net, x, batch_size=5).probs, whole)
    ub.fit([net, ub.UDN(layers, ub.Categorical(2), seed=1)], data, epochs=1, batch_size=8)
    with pytest.raises(ValueError, match="Stacked does not take layers that take a context"):
        ub.fit([net], data, engine=Stacked(), epochs=1, batch_size=8)
    outputs, _ = net.freeze()(x)
    torch.testing.assert_close(outputs, net.eval()(x))


def test_trees():
    ragged = [{"tokens": torch.arange(n), "mask": torch.ones(n).bool()} for n in (3, 1)]
    found = trees.padded(ragged, value=9)
    assert found["tokens"].tolist() == [[0, 1, 2], [0, 9, 9]]
    assert found["mask"].tolist() == [[True] * 3, [True, False, False]]
    assert trees.num_rows(found) == 2
    assert trees.rows(found, slice(1, 2))["tokens"].shape == (1, 3)
    assert trees.joined([found, found])["mask"].shape == (4, 3)
    assert not trees.is_tree(((0, 1), (1, 0)))
    with pytest.raises(ValueError, match="same rows"):
        trees.num_rows((torch.zeros(2), torch.zeros(3)))


def test_blocks_recompute_compute_in_bfloat16_and_take_loaders():
    x, y = shifted(8, 5)
    grads = []
    for recomputes in (False, True):
        net = model(ub.FixedDepth(2), dropout=0.3)
        net.network.configure(recomputes=recomputes)
        mask = torch.ones_like(x).bool()
        net.elbo((x, mask), y, 100).elbo.backward()
        grads.append([p.grad for p in net.network.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(*_grads_of_two_passes(x, y), strict=True):
        torch.testing.assert_close(one, other)
    net = ub.UDN(ub.TransformerLayers(V, 8, heads=2), ub.Tokens(V), ub.FixedDepth(2))
    info = ub.step(net, ub.make_optimizer(net), x, y, 100, autocast=torch.bfloat16)
    assert math.isfinite(info.loss)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    with pytest.raises(ValueError, match="how many tokens the loader's data set has"):
        ub.fit(net, loader, epochs=1)
    result = ub.fit(net, loader, validation=loader, epochs=1, num_data=32, progress=False)
    assert result.best_row["val_perplexity"] > 1


def _grads_of_two_passes(x, y):
    """Of two passes before their backward, and of one more backward through them."""
    found = []
    for recomputes in (False, True):
        net = model(ub.FixedDepth(2), dropout=0.3)
        net.network.configure(recomputes=recomputes)
        loss = net.elbo(x, y, 100).elbo - 0.5 * net.elbo(x[:4], y[:4], 100).elbo
        loss.backward(retain_graph=True)
        loss.backward()
        assert {m.seen.item() for m in net.modules() if hasattr(m, "seen")} == {2}
        found.append([p.grad for p in net.network.parameters()])
    return found


@pytest.mark.parametrize("name", ["rotary", "learnt"])
def test_dropout_leaves_the_first_weights_of_a_seed(name):
    nets = [model(**VARIANTS[name], dropout=dropout) for dropout in (0.0, 0.5)]
    without, dropping = (dict(net.named_parameters()) for net in nets)
    assert without.keys() == dropping.keys()
    assert all(torch.equal(without[key], dropping[key]) for key in without)
    salts = {m.salt.item() for m in nets[1].modules() if hasattr(m, "salt")}
    assert len(salts) == 2 * nets[1].network.num_layers + 1


def test_a_sequence_drops_the_same_channels_at_all_times(tmp_path):
    net = model(ub.FixedDepth(2), dropout=0.5)
    x = tokens(6, 9)
    drop = net.network.hidden["1"].drop
    state = torch.ones(6, 9, 16)
    mask = drop(state)
    assert set(mask.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(mask, mask[:, :1].expand_as(mask))  # one mask a sequence
    assert len({tuple(row.tolist()) for row in mask[:, 0]}) == 6  # each its own
    one, other = net(x), net(x)
    assert not torch.equal(one, other)
    # What is dropped does not depend on tokens: in training, too, the past knows no future.
    seen = [m.seen.clone() for m in net.modules() if hasattr(m, "seen")]
    first = net(x)
    for module, count in zip((m for m in net.modules() if hasattr(m, "seen")), seen, strict=True):
        module.seen.copy_(count)
    changed = x.clone()
    changed[:, -1] = (changed[:, -1] + 1) % V
    torch.testing.assert_close(net(changed)[:, :, :-1], first[:, :, :-1])
    # Predictions drop nothing, and files keep the layers and where their masks stand.
    net.eval()
    assert torch.equal(net(x), net(x))
    ub.save(net, tmp_path / "model.udn")
    loaded = ub.load(tmp_path / "model.udn")
    assert torch.equal(loaded(x), net(x))
    assert loaded.layers.dropout == 0.5
    assert torch.equal(loaded.train()(x), net.train()(x))
    for share in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="dropout must be at least 0 and below 1"):
            ub.TransformerLayers(V, 16, heads=2, dropout=share)


def test_processes_that_share_a_batch_drop_channels_of_their_own():
    x, y = shifted(8, 5)
    found = []
    for rank, recomputes in ((0, False), (1, False), (0, True), (1, True)):
        net, processes = model(ub.FixedDepth(2), dropout=0.3), Processes()
        processes.rank = rank
        net.network.configure(recomputes=recomputes)
        gradient = Gradient(net, 40, StepOptions(), processes=processes)
        gradient.add(x, y, None)
        found.append(torch.cat([p.grad.flatten() for p in net.network.parameters()]))
    torch.testing.assert_close(found[:2], found[2:])
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint16", "uint32"])
def test_short_integers_are_tokens(kind):
    x, y = tokens(), tokens(seed=1)
    nets = [ub.UDN(ub.TransformerLayers(V, 8, heads=2), ub.Tokens(V)) for _ in range(3)]
    short = x.to(getattr(torch, kind))
    for net, inputs, targets in (
        (nets[0], x, y),
        (nets[1], short, y.to(getattr(torch, kind))),
        (nets[2], short.numpy(), y.numpy().astype(kind)),
    ):
        ub.fit(net, inputs, targets, epochs=1, batch_size=3, progress=False)
    expected = nets[0].predict(x).log_probs
    assert all(torch.equal(net.predict(short).log_probs, expected) for net in nets)
    written = nets[0].generate(x[:2], 3, temperature=0).tokens
    assert torch.equal(nets[1].generate(short[:2], 3, temperature=0).tokens, written)
    net = model(**VARIANTS["learnt"])
    places = torch.arange(x.shape[1]).expand_as(x)
    expected = net.predict((x, None, places)).log_probs
    assert torch.equal(net.predict((x, None, places.to(short.dtype))).log_probs, expected)
    with pytest.raises(ValueError, match="tokens must be in 0 … 6"):
        nets[0].predict(short.to(torch.int64).add(V).to(short.dtype))


# Divides what is traced into two passes as the usual backend does, without its C++ compiler: masks
# must not be made anew in the second, when their batch is over.
IN_TWO_PASSES = aot_autograd(
    fw_compiler=boxed_nop,
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("backend", "dropout"), [("eager", 0.0), (IN_TWO_PASSES, 0.4)], ids=["whole", "two passes"]
)
def test_compiled_blocks_give_the_same(monkeypatch, backend, dropout):
    compiled, real, ends = [], torch.compile, []

    def compile(function, **options):
        compiled.append(function)
        return real(function, backend=backend, **options)

    monkeypatch.setattr(torch, "compile", compile)
    x, y = shifted(8, 5)
    for compiles in (False, True):
        net = model(ub.FixedDepth(2), dropout=dropout)
        net.network.configure(compiles=compiles)
        ub.fit(net, x, y, epochs=2, batch_size=4, progress=False)
        ends.append(net.predict(x).log_probs)
    assert set(net.network.hidden.values()) <= set(compiled)
    torch.testing.assert_close(*ends)


def test_graphs_take_tokens():
    x, y = shifted(16)
    ends = []
    for engine in (Eager(), Graphs(lag=0)):
        net = ub.UDN(ub.TransformerLayers(V, 8, heads=2), ub.Tokens(V), ub.TruncatedNormal(2.0))
        mask = torch.ones_like(x).bool()
        ub.fit(
            net,
            (x, mask),
            y,
            validation=((x, mask), y),
            epochs=3,
            batch_size=8,
            lr=0.01,
            depth_rule=ub.HeldOutAscent(),
            engine=engine,
            micro_batches=2,
            progress=False,
        )
        ends.append(net.state_dict())
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, msg=name)


BAD = {
    "tokens must be in 0 … 6, got 0 … 7": lambda x, y: (x.where(x != 3, 7), y),
    "tokens must be integers": lambda x, y: (x.double(), y),
    "token targets must be in 0 … 6": lambda x, y: (x, y.where(y != 3, 7)),
    "all targets are ignored": lambda x, y: (x, torch.full_like(y, -100)),
    "all targets of row 2 are ignored": lambda x, y: (
        x,
        y.index_fill(0, torch.tensor([2, 5]), -100),
    ),
    r"outputs are of \(2, 8\) \(rows, time\), targets of \(2, 7\)": lambda x, y: (x, y[:, 1:]),
    "the mask must have shape": lambda x, y: ((x, torch.ones(len(x), 3).bool()), y),
    "the mask must be True or False": lambda x, y: ((x, torch.ones(x.shape)), y),
    "positions must have shape": lambda x, y: ((x, None, torch.arange(8)[None]), y),
    "positions must be at least 0 and below 8": lambda x, y: ((x, None, x + 4), y),
    "an input has the parts": lambda x, y: ({"token": x}, y),
    "learnt positions are integers": lambda x, y: ((x, None, x.double()), y),
    r"tokens must be integers of shape .* of torch.bool": lambda x, y: (x > 2, y),
    r"all targets of row 3 are ignored \(-100\): leave": lambda x, y: (
        x,
        y.index_fill(0, torch.tensor([3]), -100),
    ),
    "token targets must be integers .* of bool": lambda x, y: (x, y > 2),
    "token targets must be integers .* of complex64": lambda x, y: (x, y.to(torch.complex64)),
    "sequences without any token": lambda x, y: (x[:, :0], y[:, :0]),
    "gave a batch without rows": lambda x, y: (ub.Stream([(x[:0], y[:0])], 1, 9), None),
    "a Stream brings its own targets": lambda x, y: (ub.Stream(lambda _: (x, y), 1, 9), y),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_clear_error(words):
    places = {"positions": "learnt", "max_length": 8}
    net = ub.UDN(ub.TransformerLayers(V, 8, heads=2, **places), ub.Tokens(V))
    x, y = shifted(16)
    x, y = BAD[words](x, y)
    with pytest.raises(ValueError, match=words) as caught:
        ub.fit(net, x, y, epochs=1, batch_size=8, progress=False)
    assert "\n" not in str(caught.value)


def test_bad_input_of_a_prediction_is_one_clear_error():
    net, x = model(), tokens()
    mask, far = torch.ones_like(x).bool(), torch.zeros(x.shape)
    far[1, 2] = math.inf
    for given, words in (
        (x.tolist(), "tokens must be a tensor, got list"),
        (None, "tokens must be a tensor, got NoneType"),
        ((x, mask.numpy()), "the mask must be a tensor, got ndarray"),
        ((x, None, far), "positions must be finite"),
        ((x, None, far - far), "positions must be finite"),
    ):
        with pytest.raises(ValueError, match=words):
            net.predict(given)
    assert net.predict(x[:0]).log_probs.shape == (0, 9, V)


def test_sequences_end_where_positions_do():
    net = ub.UDN(
        ub.TransformerLayers(V, 8, heads=2, positions="learnt", max_length=8), ub.Tokens(V)
    )
    with pytest.raises(ValueError, match="sequences have 9 tokens, positions end at"):
        net(tokens(2, 9))
    with pytest.raises(ValueError, match="sequences have 9 tokens"):
        ub.fit(net, *shifted(16, 9), epochs=1, batch_size=8)
    for arguments, words in (
        ({"positions": "learnt"}, "need max_length"),
        ({"positions": "sine"}, "positions must be one of"),
        ({"heads": 3}, "multiple of twice the heads"),
        ({"tied": True, "out_features": 3}, "tied heads"),
    ):
        with pytest.raises(ValueError, match=words):
            ub.TransformerLayers(V, 8, **arguments)


def test_hops():
    x = torch.tensor([[0, 1, 0, 2, 1, 0, 0]])
    # The last earlier occurrence, and what comes behind it.
    assert Hops(1, 7, 3).targets(x).tolist() == [[-100, -100, 1, -100, 0, 2, 0]]
    assert Hops(2, 7, 3).targets(x).tolist() == [[-100, -100, -100, -100, 1, -100, 0]]
    for k in (1, 2, 3, 5):
        task = Hops(k, 20, 3, rows=4)
        x, y = task(torch.Generator().manual_seed(k))
        for row, targets in zip(x.tolist(), y.tolist(), strict=True):
            for place, target in enumerate(targets):
                at = place
                for _ in range(k):
                    before = [j for j in range(at) if row[j] == row[at]]
                    at = before[-1] + 1 if before else -1
                    if at < 0:
                        break
                assert target == (row[at] if at >= 0 else -100)
    assert [Hops(k).needed for k in (1, 2, 3, 4, 8)] == [2, 3, 3, 4, 5]


@pytest.mark.parametrize(("group", "size"), [("S3", 6), ("A5", 60), ("Z60", 60)])
def test_groups(group, size):
    products = table(group)
    assert products.shape == (size, size)
    numbers = torch.arange(size)
    assert all(torch.equal(row.sort().values, numbers) for row in (*products, *products.T))
    left = products[products]  # (a·b)·c
    right = products[:, products]  # a·(b·c)
    assert torch.equal(left, right)
    assert torch.equal(products, products.T) == (group == "Z60")
    x, y = WordProblem(group, 5, 3)(torch.Generator().manual_seed(0))
    assert torch.equal(y[:, 0], x[:, 0])
    assert torch.equal(y[:, 2], products[products[x[:, 0], x[:, 1]], x[:, 2]])


def test_text(tmp_path):
    text = Text.of("banana\n")
    assert text.alphabet == "\nabn"
    assert text.decode(text.encode("ban")) == "ban"
    x, y = windows(text.tokens, 3)
    assert text.decode(x.flatten()) == "banana"
    assert text.decode(y.flatten()) == "anana\n"
    (tmp_path / "a.txt").write_text("banana\n")
    assert torch.equal(Text.read(tmp_path / "a.txt").tokens, text.tokens)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(OSError, match="no text in UTF-8"):
        Text.read(tmp_path / "b.txt")
    with pytest.raises(OSError, match="cannot be read"):
        Text.read(tmp_path / "c.txt")
    with pytest.raises(ValueError, match="not in the alphabet"):
        text.encode("x")


def test_mixed_hops_say_what_they_ask_for():
    task = Hops(5, 20, 3, rows=64, mixed=True)
    assert task.asked == (1, 2, 4, 5)
    assert (task.vocabulary, task.time) == (7, 21)
    assert Hops(1, mixed=True).asked == (1,)
    x, y = task(torch.Generator().manual_seed(0))
    asks = x[:, 0] - task.letters
    assert asks.unique().tolist() == [0, 1, 2, 3]
    assert bool((y[:, 0] == -100).all())
    for number, hops in enumerate(task.asked):
        mine = asks == number
        assert torch.equal(y[mine, 1:], Hops(hops, 20, 3).targets(x[mine, 1:]))
    x, y = task.hardest(torch.Generator().manual_seed(0))
    assert bool((x[:, 0] == task.vocabulary - 1).all())
    assert torch.equal(y[:, 1:], Hops(5, 20, 3).targets(x[:, 1:]))


def test_random_windows_are_pieces_of_the_text():
    text = torch.arange(100)
    x, y = RandomWindows(text, 8, 500)(torch.Generator().manual_seed(0))
    assert x.shape == (500, 8)
    assert torch.equal(x + 1, y)
    assert torch.equal(x, x[:, :1] + torch.arange(8))
    assert (int(x[:, 0].min()), int(x[:, 0].max())) == (0, 91)  # the last target is the last token
    with pytest.raises(ValueError, match="a window of 100 needs one more"):
        RandomWindows(text, 100)


@pytest.mark.parametrize("shares_head", [False, True])
def test_heads_together_are_the_heads(shares_head):
    net = model(ub.TruncatedNormal(3.0, 1.0), shares_head=shares_head)
    last = net.support()[1]
    heads = list(net.network.stack(last, 1).heads) * (last if shares_head else 1)
    states = [torch.randn(2, 3, 16, dtype=torch.float64) for _ in heads]
    expected = torch.stack([head(state) for head, state in zip(heads, states, strict=True)])
    torch.testing.assert_close(HeadsTogether(heads)(states), expected)
    torch.testing.assert_close(HeadsTogether(heads)(states[1:3], 1), expected[1:3])
    heads[1].register_forward_hook(lambda module, given, found: found + 1)
    hooked = HeadsTogether(heads)(states)
    torch.testing.assert_close(hooked[1], expected[1] + 1)
