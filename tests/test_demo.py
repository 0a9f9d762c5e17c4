"""The demo, cut short: what it says, what it writes, how it ends."""

import os
from xml.etree import ElementTree

import pytest
import torch

from unbounded.engines import eager
from unbounded.experiments import demo


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run of a few epochs, shared by the tests that look at it."""
    path = tmp_path_factory.mktemp("demo") / "report.html"
    return demo.run(path, epochs=3, progress=False)


def test_the_page_has_every_section(short) -> None:
    text = short.path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    captions = [c.text for c in root.iter("figcaption")]
    assert captions == [
        "Decision boundary",
        "Where depths disagree",
        "Posterior over depth, q(ℓ)",
        "Accuracy by depth",
        "Depth during training",
        "What the ELBO is made of",
        "Accuracy during training",
    ]
    assert len(list(root.iter("svg"))) == len(captions)
    assert "http://" not in text
    assert "https://" not in text
    names, values = ([d.text for d in root.iter(tag)] for tag in ("dt", "dd"))
    facts = dict(zip(names, values, strict=True))
    assert facts["Test accuracy"] == f"{short.accuracy:.1%}"
    assert facts["Expected depth E[ℓ]"] == f"{short.depth_mean:.2f}"
    assert facts["Last depth with mass, m"] == str(short.max_depth)


def score(found, omega: float, part: str, seed: int) -> float:
    x, y = demo.spiral(omega, 1024, part=part, seed=seed)
    return float((found.model.predict(x).classes == y).double().mean())


def test_the_result_is_that_of_the_model(short) -> None:
    x, y = demo.spiral(10.0, 1024, part="test", seed=0)
    prediction = short.model.predict(x)
    assert short.accuracy == pytest.approx(score(short, 10.0, "test", 0))
    assert short.fit.best_score == pytest.approx(score(short, 10.0, "validation", 0))
    assert len(short.accuracy_by_depth) == len(short.depth_probs) == short.max_depth
    right = prediction.log_probs_by_depth.argmax(-1) == y
    assert short.accuracy_by_depth == pytest.approx(right.double().mean(1).tolist())
    assert sum(short.depth_probs) == pytest.approx(1)
    assert len(short.fit.history) == 3


def test_the_terminal_shows_the_posterior_and_the_scores(tmp_path, capsys) -> None:
    # From λ = 1 there are few depths, and each has a line of its own.
    found = demo.run(
        tmp_path / "page.html", omega=2.0, seed=5, epochs=2, recipe="paper", progress=False
    )
    said, errors = capsys.readouterr()
    assert errors == ""
    assert found.accuracy == pytest.approx(score(found, 2.0, "test", 5))
    assert "ω = 2" in said
    for index, (p, accuracy) in enumerate(
        zip(found.depth_probs, found.accuracy_by_depth, strict=True), start=1
    ):
        assert f"{index:>5}  {p:.3f}  " in said
        assert f"{index:>5}  {accuracy:>8.1%}" in said
    assert f"mixture over depths: {found.accuracy:.1%}" in said
    assert f"E[ℓ] = {found.depth_mean:.2f}, m = {found.max_depth}" in said
    assert str(tmp_path / "page.html") in said


def test_progress_goes_to_standard_error(tmp_path, capsys) -> None:
    demo.run(tmp_path / "page.html", epochs=2, progress=True)
    assert "2/2" in capsys.readouterr().err


def test_it_learns_and_depth_follows(tmp_path) -> None:
    found = demo.run(tmp_path / "page.html", omega=2.0, epochs=120, progress=False)
    means = found.fit.history["depth_mean"]
    assert means[-1] < means[0] - 0.4  # an easy spiral needs less than what is looked at first
    born = [row["depth"] for row in found.fit.history.births]
    assert born == list(range(10, found.model.network.num_layers + 1))
    assert born
    assert found.accuracy > 0.95  # 99.9 % after the full run
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "birth of a layer " in text
    assert "q(ℓ) had not come to rest" in text


def test_the_papers_recipe_grows_from_shallow(tmp_path) -> None:
    found = demo.run(tmp_path / "page.html", epochs=120, recipe="paper", progress=False)
    means = found.fit.history["depth_mean"]
    assert means[-1] > means[0] + 0.05
    assert type(found.model.depth).__name__ == "TruncatedPoisson"
    assert "rest" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_same_seed_gives_the_same_page_up_to_time(tmp_path) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        found = demo.run(tmp_path / name, epochs=3, seed=1, progress=False)
        text = (tmp_path / name).read_text(encoding="utf-8")
        pages.append(text.replace(f"{found.fit.seconds:.0f} s", "… s"))
    assert pages[0] == pages[1]


@pytest.mark.parametrize("after", [0, 4])
def test_ctrl_c_still_writes_the_page(tmp_path, monkeypatch, capsys, after: int) -> None:
    steps = 0
    step = eager.step_with

    def interrupted(*args, **kwargs):
        nonlocal steps
        if steps == after * 4:  # 1024 rows in batches of 256
            raise KeyboardInterrupt
        steps += 1
        return step(*args, **kwargs)

    monkeypatch.setattr(eager, "step_with", interrupted)
    found = demo.run(tmp_path / "page.html", epochs=100, progress=False)
    assert found.fit.stopped == "interrupted"
    assert len(found.fit.history) == after
    if after:
        assert 1 <= found.fit.best_epoch <= after
    ElementTree.fromstring((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "ended by Ctrl-C" in capsys.readouterr().out


def test_threads_are_given_back(tmp_path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        demo.run(tmp_path / "page.html", epochs=1, progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_cannot_work_is_refused_before_training(tmp_path, monkeypatch) -> None:
    def never(*args, **kwargs):
        raise AssertionError("training began")

    monkeypatch.setattr(demo, "fit", never)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        demo.run(tmp_path / "nowhere" / "page.html")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        demo.run(tmp_path)
    with pytest.raises(ValueError, match="omega must be a finite number, got nan"):
        demo.run(tmp_path / "page.html", omega=float("nan"))
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        demo.run(tmp_path / "page.html", epochs=0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        demo.run(tmp_path / "page.html", seed=-1)
    assert os.listdir(tmp_path) == []


def test_the_weights_rate_falls_along_a_cosine() -> None:
    assert demo._cosine(10, 0) == 1
    assert demo._cosine(10, 5) == pytest.approx(0.525)
    assert demo._cosine(10, 10) == pytest.approx(0.05)
