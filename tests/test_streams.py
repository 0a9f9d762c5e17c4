"""What streams, loaders, looks at fresh rows and exits of sequences refuse and agree on."""

import math

import pytest
import torch
import torch.nn.functional as F

import unbounded as ub
from helpers import same, state
from test_sequences import V, stirred
from unbounded import trees
from unbounded.exits import EarlyExit


def _tokens(depth=None, seed=0):
    layers = ub.TransformerLayers(V, 16, heads=2)
    return ub.UDN(layers, ub.Tokens(V), depth or ub.TruncatedNormal(2.0, 1.0), seed=seed)


def _rows(count=8):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def _dense(likelihood=None, outputs=2):
    layers = ub.PreNormDense(2, 8, outputs)
    return ub.UDN(layers, likelihood or ub.Categorical(2), ub.TruncatedNormal(2.0, 1.0), seed=0)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (-torch.ones(8), "at least 0"),
        (torch.full((8,), torch.nan), "finite"),
        (torch.ones(8, 1), "shape"),
        (torch.ones(3), "shape"),
    ],
)
@pytest.mark.parametrize("loads", [False, True], ids=["stream", "loader"])
def test_weights_of_batches_are_checked(weights, why, loads):
    item = (*_rows(), weights)
    data = ub.Stream(lambda _: item, 2, 100)
    if loads:
        data = torch.utils.data.DataLoader([0], collate_fn=lambda _: item)
    with pytest.raises(ValueError, match=f"weights must .*{why}"):
        ub.fit(_dense(), data, epochs=1, num_data=100, progress=False)


def test_a_stream_says_which_batch_does_not_fit():
    x, y = _rows()
    good, bad = (x, y, None), (x, y[:1])  # one target would be one for all rows
    with pytest.raises(ValueError, match=r"batch 3 of the stream: .* 8 rows and targets"):
        ub.fit(_dense(), ub.Stream([good, good, bad], 3, 100), epochs=1, progress=False)
    with pytest.raises(ValueError, match="num_data is 5, the stream has 100"):
        ub.fit(_dense(), ub.Stream([good], 1, 100), epochs=1, num_data=5)
    for count in (None, math.inf, 0, True, 2.5):
        with pytest.raises(ValueError, match="num_data must be an integer"):
            ub.Stream([good], 1, count)


def test_one_iterator_is_for_one_model():
    batches = [_rows(), _rows(6)]
    with pytest.raises(ValueError, match="several models cannot read one iterator"):
        ub.fit([_dense(), _dense()], ub.Stream(iter(batches), 1, 100), epochs=2)
    models = [_dense(), _dense(), _dense()]
    ub.fit(models[:2], ub.Stream(batches, 1, 100), epochs=2, progress=False)
    ub.fit(models[2], ub.Stream(iter(batches), 1, 100), epochs=2, progress=False)
    assert same(state(models[0]), state(models[2]))


def _looks(batches, model):
    """What a rule is shown of one epoch."""
    seen = []

    class Noting(ub.HeldOutAscent):
        def look(self, model, log_lik, guess, weights):
            seen.append((log_lik, guess, weights))
            super().look(model, log_lik, guess, weights)

    stream = ub.Stream(batches, len(batches), 1000)
    ub.fit(model, stream, epochs=1, depth_rule=Noting(), progress=False)
    return seen[0]


def test_a_look_guesses_by_the_targets_of_all_its_batches():
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    pieces = [(x[i : i + 1], x[i : i + 1, 0]) for i in range(6)]
    plain = _looks(pieces, _dense(ub.Gaussian(), 1))
    ones = _looks([(*p, torch.ones(1)) for p in pieces], _dense(ub.Gaussian(), 1))
    y = ub.Gaussian().check_targets(x[:, 0])
    torch.testing.assert_close(plain[1], ub.Gaussian().guess(y).double())
    torch.testing.assert_close(ones[1], plain[1])
    assert ones[2].tolist() == [1] * 6
    # Weights that some batches have are no other batch's.
    some = [(*pieces[0], torch.tensor([3.0])), *pieces[1:]]
    for batches in (some, some[::-1]):
        weights = _looks(batches, _dense(ub.Gaussian(), 1))[2]
        assert sorted(weights.tolist()) == [1, 1, 1, 1, 1, 3]


def test_a_look_at_sequences_of_several_lengths_is_one_at_padded_ones():
    draw = torch.Generator().manual_seed(0)
    batches = [(t := torch.randint(V, (2, n), generator=draw), t.roll(1, 1)) for n in (3, 6)]
    longest = [
        (F.pad(x, (0, 6 - x.shape[1])), F.pad(y, (0, 6 - y.shape[1]), value=-100))
        for x, y in batches
    ]
    for found, expected in zip(_looks(batches, _tokens()), _looks(longest, _tokens()), strict=True):
        torch.testing.assert_close(found, expected)


def test_depths_without_mass_spoil_no_exit():
    depth = ub.FiniteDepth(5)
    depth.logits.data = torch.tensor([0.0, -5.0, 2.0, -6.0, 1.0])
    frozen = stirred(_tokens(depth)).freeze(min_mass=0.05)
    assert (frozen.depth_probs == 0).tolist() == [False, True, False, True, False]
    prompt = torch.randint(V, (2, 4))
    plain = ub.generate(frozen, prompt, 4, temperature=0)
    for words in ({"sure": 0.5}, {"sure": 1.0}, {"within": 0.01}, {"sure": EarlyExit(0.99)}):
        found = ub.generate(frozen, prompt, 4, temperature=0, **words)
        assert found.log_probs.isfinite().all()
        if words in ({"sure": 0.5}, {"sure": 1.0}):
            assert torch.equal(found.tokens, plain.tokens)


def test_padding_has_no_say_in_exits():
    model = stirred(_tokens(ub.TruncatedNormal(3.0, 1.5)))
    x = torch.randint(V, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 6, dtype=torch.bool)
    left = [ub.predict(model, x, exit=level).depths.tolist() for level in (0.2, 0.25, 0.3)]
    assert len({depth for one in left for depth in one}) > 1  # some leave early, some do not
    for level in (0.2, 0.25, 0.3):
        alone = ub.predict(model, x, exit=level)
        for sides in ((0, 5), (5, 0)):
            padded = (F.pad(x, sides), F.pad(mask, sides))
            found = ub.predict(model, padded, exit=level)
            assert found.depths.tolist() == alone.depths.tolist()
            torch.testing.assert_close(
                found.log_probs[:, sides[0] : sides[0] + 6], alone.log_probs, rtol=0, atol=1e-4
            )


def test_other_padding_than_ignored_is_told():
    model = _tokens()
    x = torch.randint(V, (2, 4))
    prediction = ub.predict(model, x)
    for wrong in (-1, V):
        y = x.clone()
        y[0, 0] = wrong
        with pytest.raises(ValueError, match="token targets must be in 0"):
            prediction.log_prob(y)
        with pytest.raises(ValueError, match="token targets must be in 0"):
            model.likelihood.log_prob(prediction.outputs, y)


def test_rows_that_lack_a_part_are_not_padded():
    a, b = torch.ones(2), torch.ones(3)
    with pytest.raises(ValueError, match="1 of 2 rows lack a part"):
        trees.padded([(a, None), (b, b > 0)])
    with pytest.raises(ValueError, match="no rows to pad"):
        trees.padded([])


@pytest.mark.parametrize("words", [{"sure": "x"}, {"within": 0}, {"sure": 0}])
def test_exits_that_are_none(words):
    model = _tokens()
    with pytest.raises(ValueError, match="must be"):
        ub.generate(model, torch.zeros(1, 2, dtype=torch.long), 2, **words)


def test_sizes_of_pieces_are_whole_numbers():
    x, y = _rows()
    for size in (0, -1, 1.5):
        with pytest.raises(ValueError, match="batch_size must be an integer"):
            ub.predict(_dense(), x, batch_size=size)
        with pytest.raises(ValueError, match="micro_batches must be an integer"):
            ub.fit(_dense(), x, y, epochs=1, batch_size=4, micro_batches=size)
