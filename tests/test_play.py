"""The playground: its trainer beside the library, and its page in a browser."""

import base64
import functools
import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import special, stats

import unbounded as ub
from unbounded import growth, play
from unbounded.cli import main
from unbounded.data import spiral
from unbounded.engines import Eager
from unbounded.play import page

sys.path.insert(0, str(Path(__file__).parents[1]))
browsers = pytest.importorskip("benchmarks.browser", reason="benchmarks/ is not installed")

ROWS, BATCH, WIDTH, EPOCHS = 96, 32, 8, 17  # 51 steps


@pytest.fixture(scope="module")
def browser():
    if browsers.find() is None:
        pytest.skip("needs Chromium (chromium, chromium-browser or google-chrome)")
    with browsers.Browser() as found:
        yield found


@pytest.fixture(scope="module")
def trainer(browser, tmp_path_factory):
    """A page that has the trainer and nothing else."""
    path = tmp_path_factory.mktemp("play") / "trainer.html"
    path.write_text(f"<!DOCTYPE html><meta charset='utf-8'><script>{page.trainer()}</script>")
    browser.open(path)
    return browser


# The library's steps


class Recording(Eager):
    """Notes λ, the bound and all weights after each step, and the averages after each epoch."""

    def start(self, task):
        super().start(task)
        self.steps, self.rows = [], []

    def _advance(self, member, batch, grow):
        super()._advance(member, batch, grow)
        terms = member.terms.all()[-1].tolist()
        family = member.model.depth
        self.steps.append(
            {
                "elbo": terms[0] - terms[1] - terms[2],
                "terms": terms,
                "numbers": [p.item() for p in family.parameters()],
                "q": family.log_probs().exp().tolist(),
                "weights": weights_of(member.model),
            }
        )

    def end_epoch(self):
        rows = super().end_epoch()
        self.rows += rows
        return rows


def weights_of(model):
    boxes = {"hidden": model.network.hidden, "heads": model.network.heads}
    return {f"{role} {d}": flat(unit) for role, box in boxes.items() for d, unit in box.items()}


def flat(unit):
    return torch.cat([unit.weight.detach().flatten(), unit.bias.detach()]).tolist()


@functools.cache
def library(rule, dtype, norm):
    """The library's run, and all that the page needs to repeat it."""
    train, validation = (spiral(4, ROWS, part=p) for p in ("train", "validation"))
    train, validation = ((x.to(dtype), y) for x, y in (train, validation))
    kind, init = (ub.PreNormDense, "he") if norm else (ub.Dense, "default")
    options = {"lr": 0.02, "depth_lr_ratio": 5.0}
    if rule == "gradient":
        family = ub.TruncatedPoisson(0.5)
    else:
        family = ub.TruncatedNormal(1.5, 1.0)
        ascent = {"speed": 0.3, "floor": 0.1, "memory": 0.2, "caution": 0.05, "price": 0.1}
        ascent["narrowest"] = 0.3
        options |= {"depth_rule": ub.HeldOutAscent(reference=(1.5, 1.0), **ascent)}
        options |= {"average": 0.9, "clip": 0.3}
    prior = ub.PoissonDepth(1e4)  # whose pull λ follows: layers are born
    layers = kind(2, WIDTH, 2, activation="relu", init=init)
    model = ub.UDN(layers, ub.Categorical(2), family, prior, seed=3)
    model.to(dtype)
    first = {
        f"{role} {depth}": flat(growth.create(model, role, depth))
        for role in ("hidden", "heads")
        for depth in range(1, 25)
    }
    numbers = [p.item() for p in family.parameters()]
    engine = Recording()
    ub.fit(
        model,
        *train,
        validation=validation,
        epochs=EPOCHS,
        batch_size=BATCH,
        engine=engine,
        select="last",
        **options,
    )
    generator = torch.Generator().manual_seed(3)
    settings = {
        "width": WIDTH,
        "norm": norm,
        "init": init,
        "rule": rule,
        "rate": 0.5,
        "place": 1.5,
        "spread": 1.0,
        "ascent": {} if rule == "gradient" else ascent,
        "prior": 1e4,
        "lr": options["lr"],
        "depthRatio": options["depth_lr_ratio"],
        "average": options.get("average", 0),
        "clip": options.get("clip", 0),
        "batch": BATCH,
        "seed": 0,
    }
    given = {
        "settings": settings,
        "numbers": numbers,
        "train": {"x": train[0].flatten().tolist(), "y": train[1].tolist()},
        "held": {"x": validation[0].flatten().tolist(), "y": validation[1].tolist()},
        "first": first,
        "orders": [torch.randperm(ROWS, generator=generator).tolist() for _ in range(EPOCHS)],
    }
    return engine, given


REPEAT = """
((given) => {
  const data = { train: given.train, held: given.held };
  const first = (role, depth) => given.first[`${role} ${depth}`];
  const order = (epoch) => given.orders[epoch];
  const trainer = new Trainer(given.settings, data, { first, order });
  trainer.family.numbers.set(given.numbers);
  const found = { fast: trainer.memory.fast, steps: [], rows: [], births: trainer.births };
  for (let epoch = 0; epoch < given.orders.length; epoch++) {
    trainer.beginEpoch();
    let more = true;
    while (more) {
      more = trainer.step();
      const { logLik, depthKl, weightKl, elbo } = trainer.terms;
      const family = trainer.family;
      const q = new Float64Array(family.end());
      family.logProbs(q, q.length);
      const weights = {};
      for (const [role, units] of [["hidden", trainer.hidden], ["heads", trainer.heads]]) {
        units.forEach(({ value, size }, index) => {
          const values = trainer.memory.floats.subarray(value, value + size);
          weights[`${role} ${index + 1}`] = [...values];
        });
      }
      const numbers = [...family.numbers];
      found.steps.push({
        elbo, terms: [logLik, depthKl, weightKl], numbers, q: [...q].map(Math.exp), weights,
      });
    }
    found.rows.push(trainer.endEpoch());
  }
  return found;
})(%s)
"""


def differences(ours, theirs):
    """The largest absolute difference of each kind, relative for the bound."""
    worst = {"weights": 0.0, "numbers": 0.0, "q": 0.0, "bound": 0.0}
    for one, other in zip(ours, theirs, strict=True):
        assert one["weights"].keys() == other["weights"].keys()
        assert len(one["q"]) == len(other["q"])
        for name in one["weights"]:
            gap = np.abs(np.subtract(one["weights"][name], other["weights"][name])).max()
            worst["weights"] = max(worst["weights"], float(gap))
        for name in ("numbers", "q"):
            worst[name] = max(worst[name], float(np.abs(np.subtract(one[name], other[name])).max()))
        for a, b in zip(
            [one["elbo"], *one["terms"]], [other["elbo"], *other["terms"]], strict=True
        ):
            worst["bound"] = max(worst["bound"], abs(a - b) / max(1.0, abs(a)))
    return worst


@pytest.mark.parametrize("fast", [True, False], ids=["wasm", "plain"])
@pytest.mark.parametrize(
    ("rule", "norm"), [("held-out", True), ("gradient", False), ("gradient", True)]
)
def test_fifty_steps_are_the_library_s(trainer, rule, norm, fast):
    engine, given = library(rule, torch.float64, norm)
    given = {**given, "settings": {**given["settings"], "fast": fast}}
    found = trainer.run(REPEAT % json.dumps(given))
    assert found["fast"] is fast
    assert len(found["steps"]) == len(engine.steps) >= 50
    worst = differences(engine.steps, found["steps"])
    assert max(worst.values()) < 1e-9, worst
    layers = [len(step["weights"]) // 2 for step in engine.steps]
    born = list(range(layers[0] + 1, layers[-1] + 1))
    assert len(born) >= (2 if rule == "gradient" else 1)  # on the way
    assert [birth["depth"] for birth in found["births"]] == born
    for ours, theirs in zip(engine.rows, found["rows"], strict=True):
        assert theirs["held"] == pytest.approx(ours["val_accuracy"])
        assert theirs["logScore"] == pytest.approx(ours["val_log_score"], abs=1e-8)
        assert theirs["mean"] == pytest.approx(ours["depth_mean"], abs=1e-8)
        assert theirs["last"] == ours["max_depth"]
        assert theirs["rests"] == bool(ours.get("depth_settled", 0))


@pytest.mark.parametrize(("rule", "norm"), [("held-out", True), ("gradient", False)])
def test_fifty_steps_agree_with_single_precision(trainer, rule, norm):
    """The library's usual precision, which rounds: to 1e-4, as promised."""
    engine, given = library(rule, torch.float32, norm)
    found = trainer.run(REPEAT % json.dumps(given))
    worst = differences(engine.steps, found["steps"])
    assert max(worst.values()) < 1e-4, worst


# The rule alone, for longer


def test_the_rule_moves_and_rests_as_the_library_s(trainer):
    """Gains that come and go again: q moves, rests, and is roused."""
    rng = np.random.default_rng(0)
    epochs, rows, most, steps = 80, 40, 24, 100
    options = {"speed": 0.006, "price": 1.0, "floor": 0.2, "memory": 0.05}
    y = torch.arange(rows) % 2
    model = ub.UDN(ub.PreNormDense(2, 2, 2), ub.Categorical(2), ub.TruncatedNormal(3.0, 2.0))
    model.double()
    rule = ub.HeldOutAscent(reference=(3.0, 2.0), **options)
    rule.reserve(model, 24)
    guess = model.likelihood.guess(y)
    given, ours = {"guess": guess.tolist(), "options": options, "looks": []}, []
    for epoch in range(epochs):
        rule.settle(model, None)
        depth = model.depth.max_depth()
        gains = 0.6 * (1 - 2.0 ** -np.minimum(np.arange(most), 3)) * min(epoch, 9) / 9
        if epoch >= 60:  # all but the first two layers turn out to be harmful
            gains = gains - 0.1 * np.maximum(np.arange(most) - 1, 0)
        level = np.log(0.5) + gains
        seen = np.minimum(level[:, None] + 0.05 * rng.standard_normal((most, rows)), -1e-3)
        fitted = level + 0.01
        for _ in range(steps):
            mean = torch.zeros(1, most, dtype=torch.float64)
            mean[0, :depth] = torch.from_numpy(fitted[:depth])
            rule.add(mean, torch.ones(1, dtype=torch.bool))
        rule.look(model, torch.from_numpy(seen[:depth]), guess, None)
        state = rule._state[0].tolist()
        ours.append([model.depth.place, model.depth.spread, *state])
        given["looks"].append({"seen": seen.tolist(), "fitted": fitted.tolist()})
    script = """
    (({ guess, options, looks }) => {
      const family = new TruncatedNormal(3, 2);
      const rule = new HeldOutAscent({ reference: [3, 2], ...options });
      return looks.map(({ seen, fitted }) => {
        rule.settle(family);
        const depth = family.end();
        for (let step = 0; step < 100; step++) rule.update(fitted, depth);
        const logQ = new Float64Array(depth);
        family.logProbs(logQ, depth);
        rule.look(seen.slice(0, depth).flat(), depth, guess.length, logQ.map(Math.exp), guess);
        return [
          family.numbers[0], family.spread, rule.since, rule.drift, rule.generalises, rule.looks,
          rule.mean, rule.width, rule.arrived, rule.rests, rule.total, rule.learnt, rule.ahead,
        ];
      });
    })(%s)
    """
    theirs = np.array(trainer.run(script % json.dumps(given)))
    ours = np.array(ours)
    assert np.abs(ours - theirs).max() < 1e-7
    rests = ours[:, 2 + 7]
    assert set(rests) == {0.0, 1.0}
    assert rests[59] == 1  # it came to rest
    assert rests[-1] == 0  # and was roused
    assert ours[-1, 0] < ours[59, 0] - 1


def test_looks_are_due_at_the_library_s_epochs(trainer):
    for memory, rests in ((0.05, 1), (0.3, 1), (0.05, 0)):
        rule = ub.HeldOutAscent(memory=memory)
        rule._state[:, 7] = rests
        script = f"""(() => {{
          const rule = new HeldOutAscent({{ reference: [3, 2], memory: {memory} }});
          rule.rests = {rests};
          return Array.from({{ length: 4000 }}, (_, epoch) => rule.isDue(epoch));
        }})()"""
        found = trainer.run(script)
        assert found == [rule.is_due(epoch) for epoch in range(4000)]
        assert all(found) == (rests == 0)


# Pure functions


def test_the_normal_distribution_is_scipy_s(trainer):
    x = np.concatenate([np.linspace(-40, 9, 1999), [-2 * 2**0.5, 0.0]])
    found = np.array(trainer.run(f"{x.tolist()}.map(logNdtr)"))
    assert np.allclose(found, special.log_ndtr(x), rtol=1e-12, atol=1e-300)
    x = np.concatenate([np.linspace(-7, 7, 801), [2.0, -2.0, 26.0, 30.0]])
    assert np.allclose(trainer.run(f"{x.tolist()}.map(erf)"), special.erf(x), rtol=1e-14)
    found = trainer.run(f"{x.tolist()}.map(erfc)")
    assert np.allclose(found, special.erfc(x), rtol=1e-12, atol=1e-300)


def test_families_are_the_library_s(trainer):
    for rate in (1e-3, 0.5, 1.0, 3.7, 12.0, 40.0):
        end, log_q = trainer.run(
            f"(() => {{ const q = new TruncatedPoisson({rate}), out = new Float64Array(q.end());"
            "q.logProbs(out, out.length); return [q.end(), [...out]]; })()"
        )
        assert end == 1 + int(stats.poisson.ppf(0.95, rate))
        expected = ub.TruncatedPoisson(rate).double().log_probs()
        assert np.allclose(log_q, expected.detach(), atol=1e-6)  # λ begins in single precision
    for place, spread in ((1.0, 0.5), (4.0, 2.0), (9.0, 5.0), (-3.0, 2.0), (20.0, 0.7)):
        end, log_q = trainer.run(
            f"(() => {{ const q = new TruncatedNormal({place}, {spread});"
            "const out = new Float64Array(60); q.logProbs(out, 60);"
            "return [q.end(), [...out]]; })()"
        )
        family = ub.TruncatedNormal(place, spread)
        at = family.numbers_of(torch.tensor(place).double(), torch.tensor(spread).double())
        expected = family.log_probs_at(at, 60).numpy()
        assert end == int(family.end(at, 60)) == int((expected > -1e29).sum())
        assert np.allclose(log_q[:end], expected[:end], atol=1e-9)
        assert (np.array(log_q[end:]) < -1e29).all()


def test_the_prior_is_the_library_s(trainer):
    depths = torch.arange(1, 40)
    found = trainer.run(f"{depths.tolist()}.map((depth) => poissonLogPrior(depth, 0.7))")
    assert np.allclose(found, ub.PoissonDepth(0.7).log_prob(depths), atol=1e-10)


def test_random_numbers_have_their_distributions(trainer):
    draw = (
        "(() => {{ const r = new Random({});"
        "return Array.from({{ length: 4000 }}, () => r.{}()); }})()"
    )
    uniform, normal = (trainer.run(draw.format("5, 1", name)) for name in ("uniform", "normal"))
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    assert trainer.run(draw.format("5, 1", "uniform")) == uniform  # the same seed, the same numbers
    other = trainer.run(draw.format("5, 2", "uniform"))
    assert abs(np.corrcoef(uniform, other)[0, 1]) < 0.06
    order = trainer.run(
        "(() => { const out = new Uint32Array(50);"
        "new Random(1).permute(out, 50); return [...out]; })()"
    )
    assert sorted(order) == list(range(50)) != order


def test_first_weights_are_drawn_as_the_library_draws_them(trainer):
    draw = "[...firstWeights(0, '{}', 3, 64, 64, '{}')]"
    he = np.array(trainer.run(draw.format("hidden", "he")))
    assert stats.kstest(he[:4096], "norm", (0, (2 / 64) ** 0.5)).pvalue > 1e-3
    assert not he[4096:].any()
    for role, init in (("hidden", "default"), ("heads", "he")):  # heads keep torch's default
        found = np.array(trainer.run(draw.format(role, init)))
        assert stats.kstest(found, "uniform", (-1 / 8, 2 / 8)).pvalue > 1e-3


def test_spirals_are_the_paper_s(trainer):
    found = trainer.run(
        "(() => { const { x, y } = spiral(7, 2000, 1, 'train'); return [[...x], [...y]]; })()"
    )
    x, y = np.array(found[0]).reshape(-1, 2), np.array(found[1])
    radius = np.hypot(*x.T)
    centre = (2 * y - 1)[:, None] * radius[:, None]
    angle = 7 * radius * np.pi / 2
    turned = np.stack([np.cos(angle), np.sin(angle)], 1) * centre
    assert np.abs(x - turned)[radius > 0.1].mean() < 0.1  # noise of 0.02, and 11 times across
    assert stats.kstest(radius**2, "uniform").pvalue > 1e-4
    assert 900 < y.sum() < 1100


# The page


@pytest.fixture
def playground(browser, tmp_path):
    path = play.write(tmp_path / "playground.html")
    browser.look(1280, 900)
    browser.open(path)
    browser.wait("state.layers > 0")
    yield browser
    assert browser.complaints() == []


def click(browser, name):
    browser.run(f"document.getElementById('{name}').click()")


def choose(browser, **settings):
    """Settings as a person makes them, one after another."""
    for name, value in settings.items():
        browser.run(
            f"(() => {{ const field = form.elements['{name}']; field.value = '{value}';"
            "const one = field.length && !field.options ? field[0] : field;"
            "one.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )


def test_the_page_is_small_and_complete():
    html = play.html()
    assert len(html.encode()) < 90_000
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<[^>]+\son[a-z]+=", html)  # handlers stand in the script
    assert not re.search(r"<(link|img|iframe)\b|@import|url\(", html)
    assert html.count("<script") == 2
    assert "{{" not in html
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert "unsafe-inline" not in policy
    assert "default-src 'none'" in policy
    for mark, digest in (("style", "style-src"), ("script", "script-src")):
        text = re.search(rf"<{mark}>(.*?)</{mark}>", html, re.S)[1]
        found = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{digest} 'sha256-{found}'" in policy


def test_the_page_starts_from_the_library_s_numbers():
    values = dict(re.findall(r'name="(place|spread|floor)"[^>]* value="([^"]+)"', page.html()))
    place, spread = ub.PreNormDense.reference
    expected = {"place": place, "spread": spread, "floor": ub.HeldOutAscent().floor}
    assert {name: float(value) for name, value in values.items()} == expected


def test_lean_scripts_are_the_same_scripts():
    text = "a = 1;\n/** What.\n * b */\n  b(); // said\n\n  // alone\nc();\n"
    assert page._lean(text) == "a = 1;\nb(); // said\nc();"


def test_play_pause_step_reset(playground):
    choose(playground, rows=128, width=8, place=3, spread=1)
    playground.wait("state.layers > 0 && state.layers < 8")
    click(playground, "play")
    playground.wait("state.epoch >= 30")
    assert playground.run("document.getElementById('play').textContent") == "Pause"
    click(playground, "play")
    playground.wait("!state.training && status.textContent.startsWith(`Epoch ${state.epoch}:`)")
    epoch = playground.run("state.epoch")
    assert playground.run("document.getElementById('play').textContent") == "Play"
    click(playground, "step")
    playground.wait(f"state.epoch === {epoch + 1}")
    assert playground.run("state.rows.map((row) => row.epoch)") == list(range(1, epoch + 2))
    q = playground.run("state.q")
    assert sum(q) == pytest.approx(1)
    assert playground.run("document.querySelectorAll('#bars .bar').length") >= len(q)
    assert (
        playground.run("document.querySelector('#scores path.one').getAttribute('d').length") > 99
    )
    assert playground.run("state.picture.values.every((p) => p >= 0 && p <= 1)")
    click(playground, "reset")
    playground.wait("state.epoch === 0 && state.rows.length === 0 && state.layers > 0")
    assert playground.run("document.querySelectorAll('#scores path').length") == 0


def test_the_same_seed_gives_the_same_run(playground):
    rows = []
    for seed in (1, 1, 2):
        choose(playground, rows=128, width=8, place=2, spread=1, seed=seed)
        for epoch in (1, 2):
            click(playground, "step")
            playground.wait(f"state.epoch === {epoch}")
        rows.append(playground.run("state.rows"))
    assert rows[0] == rows[1] != rows[2]


def test_layers_are_born_by_the_paper_s_rule(playground):
    choose(playground, rule="gradient")
    assert playground.run("form.elements.layers.value") == "he"  # what goes with the rule
    choose(playground, layers="default", rows=512, omega=6, width=8, lr=-1.5)
    choose(playground, rate=0.2, prior=10, depthRatio=1)
    parts = "[...form.querySelectorAll('[data-for]')].filter((part) => !part.hidden)"
    assert "held-out" not in playground.run(f"{parts}.map((part) => part.dataset.for)")
    for epoch in range(1, 9):
        click(playground, "step")
        playground.wait(f"state.epoch === {epoch}")
    births = playground.run("state.births")
    depths = [birth["depth"] for birth in births]
    assert depths == list(range(depths[0], depths[-1] + 1))
    assert all(1 <= birth["epoch"] <= 8 for birth in births)
    playground.wait(f"document.querySelectorAll('#depths .birth').length === {len(births)}")
    assert playground.run("document.querySelectorAll('#bars .new').length") == len(births)
    assert "just born" in playground.run("status.textContent")
    playground.run("document.getElementById('numbers').open = true")
    playground.wait("document.querySelectorAll('#rows tr').length === state.layers")
    assert "born in epoch" in playground.run("document.getElementById('rows').textContent")


def test_own_points_by_keyboard_alone(playground):
    choose(playground, kind="own", rows=128, width=8, place=2, spread=1)
    playground.wait("state.wanting && document.getElementById('play').disabled")
    assert "both classes" in playground.run("status.textContent")
    assert playground.run("[plane.tabIndex, plane.getAttribute('role')]") == [0, "application"]
    playground.run("plane.focus()")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "Enter", "ArrowUp", "Enter"):
        playground.key(key)
    assert playground.run("state.cross") == [-0.3, 0.1]
    for key in ("2", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "Enter"):
        playground.key(key)
    assert "class B; 30 points" in playground.run("status.textContent")
    playground.key("ArrowDown")
    playground.key("Enter")
    playground.key("Enter")
    playground.key("Backspace")
    assert playground.run("state.own.length") == 3 * 40
    playground.wait("!document.getElementById('play').disabled && state.layers > 0")
    playground.run("document.getElementById('play').focus()")
    playground.key(" ")
    playground.wait("state.epoch >= 60")
    playground.key(" ")
    playground.wait("!state.training && state.rows.at(-1).held > 0.9")
    assert playground.run("state.y.length") == 27  # every third of 40 is held out


def test_own_points_by_clicking(playground):
    choose(playground, kind="own", spray=4)
    playground.wait("state.wanting")
    x, y, width = playground.run(
        "(() => { const b = plane.getBoundingClientRect(); return [b.left, b.top, b.width]; })()"
    )
    place = {"x": x + width * 0.75, "y": y + width * 0.25, "button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        playground.call("Input.dispatchMouseEvent", type=kind, **place)
    own = np.array(playground.run("state.own")).reshape(-1, 3)
    assert own.shape == (4, 3)
    assert np.abs(own[:, :2] - 0.625).max() < 0.2
    assert not own[:, 2].any()


def test_too_many_layers_are_told(playground):
    choose(playground, rows=128, width=8, place=20, spread=8)
    playground.run(
        "(() => { const usual = settings; settings = () => ({ ...usual(), place: 70 }); })()"
    )
    click(playground, "reset")
    playground.wait("state.stopped")
    assert "64 layers" in playground.run("status.textContent")


def test_errors_in_the_worker_are_told(playground):
    playground.run("worker.postMessage({ type: 'nonsense' })")
    playground.wait("state.stopped")
    assert "Training stopped" in playground.run("status.textContent")
    assert playground.run("document.getElementById('play').disabled")
    click(playground, "reset")  # which begins anew
    playground.wait("!state.stopped && !document.getElementById('play').disabled")
    assert len(playground.complaints()) == 1
    playground.events.clear()


def test_everything_has_a_name(playground):
    playground.call("Accessibility.enable")
    nodes = playground.call("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if node.get("role", {}).get("value")
        in {"button", "slider", "combobox", "radio", "image", "status"}
    }
    assert all(name for role, name in named if role != "status"), named
    assert {role for role, _ in named} == {
        *("button", "slider", "combobox", "radio"),
        "image",
        "status",
    }
    assert {("button", "Play"), ("slider", "Speed ω"), ("combobox", "Rule")} <= named
    # One tab after another reaches all that can be used.
    playground.run("document.body.focus()")
    seen = []
    for _ in range(30):
        playground.key("Tab")
        seen.append(
            playground.run("document.activeElement.id || document.activeElement.name || ''")
        )
    assert {"play", "step", "reset", "pace", "kind", "omega", "rule", "lr"} <= set(seen)


def test_less_motion_is_less_drawing(playground):
    playground.look(1280, 900, still=True)
    choose(playground, rows=128, width=8, place=2, spread=1)
    playground.wait("state.layers > 0 && state.layers < 8 && state.y.length === 128")
    playground.run(
        "(() => { const hear = worker.onmessage; state.heard = 0; worker.onmessage = (event) => {"
        "state.heard += event.data.type === 'news'; hear(event); }; })()"
    )
    playground.run("state.start = performance.now()")
    click(playground, "play")
    playground.wait("state.epoch >= 200")
    heard, seconds = playground.run("[state.heard, (performance.now() - state.start) / 1000]")
    assert heard <= seconds + 3  # instead of eight a second
    playground.look(1280, 900)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_and_legible(playground, dark):
    for width in (400, 800, 1280):
        playground.look(width, 800, dark=dark)
        assert playground.run("document.documentElement.scrollWidth") <= width
    for ink in ("--ink", "--soft", "--a", "--b"):
        for paper in ("--paper", "--card"):
            one, other = sorted(
                luminance(playground.run(f"colour('{name}')")) for name in (ink, paper)
            )
            assert (other + 0.05) / (one + 0.05) >= 4.5, (ink, paper)


# The command


def test_the_command_writes_the_page_and_opens_it(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    path = tmp_path / "p.html"
    assert main(["play", "--out", str(path)]) == 0
    assert path.read_text() == play.html()
    assert opened == [path.as_uri()]
    assert capsys.readouterr().out == f"page: {path}\n"
    assert main(["play", "--out", str(path), "--no-browser", "--json"]) == 0  # it is ours
    assert json.loads(capsys.readouterr().out) == {"page": str(path), "opened": False}
    assert len(opened) == 1
    other = tmp_path / "mine.html"
    other.write_text("my own")
    assert main(["play", "--out", str(other)]) == 2
    assert other.read_text() == "my own"


def test_the_documented_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / "playground.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "docs/playground.md", "exec"), {})
    assert (tmp_path / "playground.html").read_text() == play.html()
