"""Sequences from the mixture over depths: caches, early exits, draws."""

import math

import pytest
import torch

import unbounded as ub
from test_sequences import V, model, tokens


def slowly(net, prompt, length):
    """Without a cache: the most probable token of the whole mixture each time."""
    for _ in range(length):
        best = ub.predict(net, prompt).log_probs[:, -1].argmax(-1, keepdim=True)
        prompt = torch.cat([prompt, best], 1)
    return prompt


@pytest.mark.parametrize("arguments", [{}, {"positions": "learnt", "max_length": 20}])
def test_a_cache_changes_nothing(arguments):
    net, prompt = model(ub.TruncatedNormal(3.0, 1.0), **arguments), tokens(3, 4)
    found = ub.generate(net, prompt, 8, temperature=0)
    assert torch.equal(found.tokens, slowly(net, prompt, 8))
    assert bool((found.depths == net.support()[1]).all())
    mixed = ub.predict(net, found.tokens[:, :-1]).log_probs[:, 3:]
    expected = mixed.gather(-1, found.tokens[:, 4:, None])[..., 0]
    torch.testing.assert_close(found.log_probs.double(), expected, rtol=1e-5, atol=1e-5)
    frozen = ub.generate(net.freeze(), prompt, 8, temperature=0)
    assert torch.equal(frozen.tokens, found.tokens)


def test_tokens_that_leave_early_are_those_of_the_whole_mixture():
    net = model(ub.TruncatedNormal(3.0, 1.5), shares_head=True)
    with torch.no_grad():
        net.network.heads["1"].linear.weight *= 6  # so that some are sure, and others not
    for seed in range(3):
        prompt = tokens(1, 3, seed)
        whole = ub.generate(net, prompt, 12, temperature=0)
        early = ub.generate(net, prompt, 12, temperature=0, sure=0.5)
        assert torch.equal(early.tokens, whole.tokens)
        assert bool((early.depths <= whole.depths).all())
        if len(early.depths.unique()) > 1:
            break
    else:
        pytest.fail("no sequence has tokens that leave at several depths")


@pytest.mark.parametrize("within", [1e-9, 0.02, 0.1, 1.0])
def test_a_token_leaves_when_deeper_layers_are_expected_to_change_little(within):
    net = model(ub.TruncatedNormal(3.0, 1.5))
    for seed in range(3):
        prompt = tokens(2, 5, seed)
        whole = ub.predict(net, prompt)
        q, each = whole.depth_log_probs.exp(), whole.outputs[:, :, -1].softmax(-1)
        spoken = q.cumsum(0)
        mixtures = (q[:, None, None] * each).cumsum(0) / spoken[:, None, None]
        apart = (each - mixtures).abs().sum(-1).amax(1) / 2  # of the sequence that is furthest
        leaves = ((1 - spoken) * apart <= within) & (spoken >= 0.25)
        leaves[-1] = True
        expected = int(leaves.double().argmax())
        found = ub.generate(net, prompt, 1, temperature=0, within=within)
        assert found.depths.tolist() == [expected + 1]
        assert torch.equal(found.tokens[:, -1], mixtures[expected].argmax(-1))


def test_states_that_wait_are_run_later():
    """Each token is predicted by the depths up to its own, as if none had been left out before."""
    net, prompt = model(ub.TruncatedNormal(3.0, 1.5)), tokens(1, 3)
    found = ub.generate(net, prompt, 10, temperature=0, within=0.02)
    assert len(found.depths.unique()) > 1
    whole = ub.predict(net, found.tokens[:, :-1])
    q, each = whole.depth_log_probs.exp(), whole.outputs[:, 0, 2:].softmax(-1)
    for place, (depth, token) in enumerate(zip(found.depths, found.tokens[0, 3:], strict=True)):
        mixed = (q[:depth] @ each[:depth, place]) / q[:depth].sum()
        assert math.isclose(
            float(found.log_probs[0, place].exp()), float(mixed[token]), rel_tol=1e-5
        )


def test_sequences_are_mixed_by_what_was_written():
    likelihood = ub.Tokens(V, mix="sequence")
    net, prompt = model(ub.TruncatedNormal(2.0, 1.0), likelihood=likelihood), tokens(2, 4)
    found = ub.generate(net, prompt, 5, generator=torch.Generator().manual_seed(0))
    x, y = found.tokens[:, :-1], found.tokens[:, 1:]
    expected = ub.predict(net, x).token_log_probs(y)[:, 3:]
    torch.testing.assert_close(found.log_probs.double(), expected, rtol=1e-4, atol=1e-4)


def test_draws():
    net, prompt = model(ub.FixedDepth(2)), tokens(1, 3).repeat(400, 1)

    def draw(seed=0, **options):
        return ub.generate(net, prompt, 1, generator=torch.Generator().manual_seed(seed), **options)

    one, again, other = draw(), draw(), draw(1)
    assert torch.equal(one.tokens, again.tokens)
    assert not torch.equal(one.tokens, other.tokens)
    probs = ub.predict(net, prompt[:1]).probs[0, -1]
    shares = one.tokens[:, -1].bincount(minlength=V) / 400
    error = (probs * (1 - probs) / 400).sqrt()
    assert bool(((shares - probs).abs() < 4.5 * error).all())
    best = set(probs.topk(2).indices.tolist())
    assert set(draw(top_k=2).tokens[:, -1].tolist()) == best
    assert draw(temperature=0).tokens[:, -1].unique().tolist() == [int(probs.argmax())]
    assert torch.equal(draw(temperature=1e-40).tokens, draw(temperature=0).tokens)
    assert torch.equal(draw(temperature=1e-300).tokens, draw(temperature=0).tokens)
    newborn = ub.UDN(ub.TransformerLayers(V, 16, heads=2), ub.Tokens(V))  # all tokens are equal
    written = newborn.generate(prompt[:1].expand(64, -1), 1, top_k=2).tokens[:, -1]
    assert len(written.unique()) == 2
    sharp = draw(temperature=0.25).tokens[:, -1].bincount(minlength=V)
    assert int(sharp.max()) > int(one.tokens[:, -1].bincount(minlength=V).max())
    assert math.isclose(
        float(one.log_probs[0, 0].exp()), float(probs[one.tokens[0, -1]]), rel_tol=1e-4
    )


def test_bad_arguments_are_one_clear_error():
    net, prompt = model(max_length=6), tokens(1, 3)
    for options, words in (
        ({"length": 5}, "prompt and continuation have 8 tokens"),
        ({"length": 0}, "length must be"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"top_k": 0}, "top_k must be"),
        ({"top_k": 1.5}, "top_k must be"),
        ({"top_k": math.inf}, "top_k must be"),
        ({"length": math.inf}, "length must be"),
        ({"sure": 1.5}, "sure must be"),
        ({"within": 0.0}, "within must be"),
        ({"prompt": prompt[:, :0]}, r"prompt must be a tensor of tokens .* got \(1, 0\)"),
        ({"prompt": prompt.tolist()}, "prompt must be a tensor of tokens .* got list"),
        ({"prompt": prompt + V}, "tokens must be in"),
    ):
        with pytest.raises(ValueError, match=words):
            ub.generate(net, **{"prompt": prompt, "length": 2, **options})
    by_sequence = model(likelihood=ub.Tokens(V, mix="sequence"))
    for option in ("sure", "within"):
        with pytest.raises(ValueError, match="are for tokens mixed by token"):
            by_sequence.generate(prompt, 2, **{option: 0.5})
    with pytest.raises(ValueError, match=f"the layers take {V} tokens and give 5"):
        ub.generate(model(out_features=5, likelihood=ub.Tokens(5)), prompt, 4)
    with pytest.raises(ValueError, match="causal"):
        ub.generate(model(causal=False), prompt, 1)
    dense = ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2))
    with pytest.raises(ValueError, match="TransformerLayers"):
        ub.generate(dense, prompt, 1)
