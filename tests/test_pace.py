"""How long a table is trained."""

from types import SimpleNamespace

import numpy as np
import pytest

import unbounded as ub
from unbounded import UDNClassifier
from unbounded.engines import Eager, Stacked
from unbounded.estimators.pace import Overfits
from unbounded.training import Callback


def ended(losses, epochs, rows=100):
    """The epoch after which such held-out losses end a training; None if they do not."""
    rule, asked = Overfits(epochs, rows), []
    for epoch, loss in enumerate(losses, 1):
        trainer = SimpleNamespace(epoch=epoch, stop=lambda epoch=epoch: asked.append(epoch))
        rule.on_epoch_end(trainer, {"val_log_score": -loss})
    return asked[0] if asked else None


def test_training_ends_once_the_held_out_loss_has_been_high_for_long():
    assert ended([1.0] * 10 + [1.2] * 90, 100) == 15  # a twentieth of the training
    assert ended([1.0] * 10 + [1.1] * 90, 100) is None  # less than 15 % above
    assert ended([1.0] * 10 + [1.2, 1.2, 1.2, 1.1] * 20, 100) is None  # never for long
    assert ended([1.0] + [1.2] * 99, 100) == 11  # the first tenth is left alone
    assert ended([1.0] + [1.2] * 9, 10) == 4  # in three epochs at least


def test_few_rows_or_small_losses_have_to_show_more():
    losses = [0.05] * 10 + [0.06] * 90
    assert ended(losses, 100, rows=100) is None  # a nat in all
    assert ended(losses, 100, rows=300) == 15


@pytest.fixture(scope="module")
def noisy():
    """Classes of much noise, by one of many columns: they are soon learnt by heart."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((240, 20))
    return x, (x[:, 0] + rng.standard_normal(240) > 0).astype(int)


def test_classes_that_are_learnt_by_heart_end_early_and_keep_the_same_epoch(noisy):
    options = {"random_state": 0, "width": 32, "epochs": 60, "n_members": 1}
    model = UDNClassifier(**options).fit(*noisy)
    whole = UDNClassifier(**options, patience=None).fit(*noisy)
    assert (model.stopped_, whole.stopped_) == ("patience", "epochs")
    assert model.n_iter_ < whole.n_iter_ / 2
    assert model.best_epoch_ == whole.best_epoch_
    np.testing.assert_array_equal(model.predict_proba(noisy[0]), whole.predict_proba(noisy[0]))


class Engines(Callback):
    """Notes which engine trains."""

    def __init__(self):
        self.seen = []

    def on_fit_start(self, trainer):
        self.seen.append(type(trainer.engine))


@pytest.mark.parametrize(
    ("layers", "count", "engine"),
    [
        (ub.TableDense, 2, Eager),  # by `vmap` two take longer than one after the other
        (ub.TableDense, 5, Stacked),
        (ub.PreNormDense, 2, Stacked),  # products by hand
    ],
)
def test_several_models_are_trained_the_faster_way(layers, count, engine, noisy):
    x, y = noisy
    models = [ub.UDN(layers(20, 8, 2), ub.Categorical(2), seed=seed) for seed in range(count)]
    engines = Engines()
    ub.fit(models, x, y, epochs=1, batch_size=64, callbacks=[engines], progress=False)
    assert engines.seen == [engine]
