"""Free text in tables: the words that tell of the target."""

import numpy as np
import pandas as pd
import pytest

from unbounded import TableModel, UDNClassifier, UDNRegressor
from unbounded.exporting import ExportError, export
from unbounded.tables import columns as profiles
from unbounded.tables import encoders as enc
from unbounded.tables import streaming, words
from unbounded.tables.columns import Profile
from unbounded.tables.encoding import Encoding, standardized_response
from unbounded.tables.prepare import prepare
from unbounded.tables.reading import Table, TableError

SHORT = {"epochs": 12, "width": 16, "random_state": 0}
BRANDS = {"toyota": 0, "datsun": 0, "ford": 1, "chevrolet": 1, "fiat": 2, "renault": 2}


def cars(rows=300, seed=0):
    """Names that hardly repeat and begin with what tells their class."""
    random = np.random.default_rng(seed)
    brands = random.choice(list(BRANDS), rows)
    models = [f"{a} {b}" for a, b in zip(*random.integers(100, 999, (2, rows)), strict=True)]
    names = [f"{brand.title()} {model}" for brand, model in zip(brands, models, strict=True)]
    weight = random.normal(size=rows)
    y = np.array(["east", "west", "south"])[[BRANDS[brand] for brand in brands]]
    return pd.DataFrame({"weight": weight, "name": names}), y


def kind_of(texts):
    found = Profile("column")
    found.update(pd.Series(texts, dtype="str"), 0)
    return found.column()


def test_words_are_runs_of_letters_and_digits_without_case():
    assert words.words_of("Braund, Mr. Owen_Harris (2nd)") == {
        "braund",
        "mr",
        "owen",
        "harris",
        "2nd",
    }
    assert words.words_of("Ünïcode STRASSE") == {"ünïcode", "strasse"}
    assert words.words_of("a" * 41) == words.words_of("") == frozenset()


def test_texts_of_which_words_repeat_are_read_by_these():
    titles = ["Mr", "Mrs", "Miss"]
    assert kind_of([f"{titles[i % 3]}. No{i}" for i in range(100)]).kind == "words"
    assert kind_of([f"{titles[i % 3]}. No{i % 70}" for i in range(100)]).kind == "words"
    # An identifier with the same word everywhere, one without any, and what is a category.
    assert kind_of([f"customer-{i}" for i in range(100)]).kind == "dropped"
    assert kind_of([f"x{i}" for i in range(100)]).kind == "dropped"
    assert kind_of([f"{titles[i % 3]}. No{i % 30}" for i in range(100)]).kind == "category"
    # A word in four rows is too rare.
    four = [f"blue x{i}" if i < 4 else f"y{i}" for i in range(100)]
    assert kind_of(four).kind == "dropped"
    assert kind_of([*four[:-1], "blue y99"]).kind == "words"


def test_texts_that_are_too_many_to_be_counted(monkeypatch):
    monkeypatch.setattr(profiles, "TRACKED", 50)
    rows = [f"u{i}" for i in range(200)] + [f"{['red', 'blue'][i % 2]} u{i}" for i in range(200)]
    for order in (rows, rows[::-1]):
        found = Profile("column")
        for start in range(0, 400, 100):
            found.update(pd.Series(order[start : start + 100], dtype="str"), start)
        assert found.levels is None
        assert found.column().kind == found.column(keep=True).kind == "words"
        assert found.column(category=True).kind == "dropped"
    found = Profile("column")
    found.update(pd.Series([f"n{i}" for i in range(100)], dtype="str"), 0)
    assert found.column().kind == "dropped"


def test_one_long_text_is_no_reason_to_leave_out_the_others():
    texts = [f"{['red', 'blue'][i % 2]} {i}" for i in range(100)]
    assert kind_of([*texts, "good " * 20_000]).kind == "words"
    found = kind_of([*(f"x{i}" for i in range(100)), "y" * 70_000])
    assert (found.kind, found.why) == ("dropped", "texts of more than 65,536 letters")


def test_words_that_are_too_many_to_be_counted(monkeypatch):
    monkeypatch.setattr(words, "_TRACKED", 100)
    count = words.Count()
    for start in range(0, 1000, 50):
        count.add({f"often x{i}" if i % 2 else f"x{i}": 1 for i in range(start, start + 50)})
    assert len(count.words) <= 150
    assert count.rows == 1000
    assert count.repeats


def coded(texts):
    codes, levels = pd.factorize(pd.Series(texts, dtype=object))
    return enc.Coded(codes.astype(np.int32), [str(level) for level in levels])


def test_words_that_tell_of_the_target_are_found_and_others_are_not():
    random = np.random.default_rng(0)
    found, false = 0, 0
    for _ in range(40):
        present = random.random((400, 30)) < 0.1
        response = present[:, 0] * 1.0 - present[:, 1] * 1.0 + 0.7 * random.normal(size=400)
        response = (response - response.mean()) / response.std()
        texts = [
            f"{n} " + " ".join(f"w{i}" for i in np.flatnonzero(row))
            for n, row in enumerate(present)
        ]
        chosen = enc.WordsEncoder.fit(coded(texts), enc.Response(response[:, None], 0)).words
        found += {"w0", "w1"} <= set(chosen)
        false += len(set(chosen) - {"w0", "w1"})
    assert found == 40
    assert false <= 12  # of 28 · 40 that tell nothing


def noise(random, rows, words=100):
    """Texts of words that tell nothing."""
    present = random.random((rows, words)) < 0.05
    return coded(
        [f"x{n} " + " ".join(f"w{i}" for i in np.flatnonzero(r)) for n, r in enumerate(present)]
    )


def balanced(random):
    y = (random.random(600) < 0.05).astype(int)
    weights = np.where(y == 1, 10.0, 0.5)
    return noise(random, 600), standardized_response(y, 2, weights), weights


def gone_with_the_target(random):
    values, y = noise(random, 1000), random.integers(0, 2, 1000)
    codes = np.where((y == 0) & (random.random(1000) < 0.8), -1, values.codes)
    return enc.Coded(codes, values.levels), standardized_response(y, 2), None


def outlier(random):
    y = random.normal(size=500)
    y[7] = 1e4
    return noise(random, 500), standardized_response(y), None


def weighted(random):
    weights = np.exp(2 * random.normal(size=800))
    y = random.integers(0, 2, 800)
    return noise(random, 800), standardized_response(y, 2, weights), weights


@pytest.mark.parametrize(
    "case",
    [
        balanced,
        gone_with_the_target,
        outlier,
        weighted,
        lambda r: (
            noise(r, 500),
            standardized_response(r.integers(0, 2, 500), 2),
            np.full(500, 50.0),
        ),
        lambda r: (noise(r, 400), standardized_response(r.integers(0, 40, 400), 40), None),
        lambda r: (noise(r, 500), standardized_response(np.exp(3 * r.normal(size=500))), None),
    ],
    ids=["balanced", "gone", "outlier", "weighted", "heavy", "classes", "tails"],
)
def test_what_tells_nothing_is_not_taken_for_telling(case):
    random = np.random.default_rng(0)
    found = []
    for _ in range(8):
        values, response, weights = case(random)
        found += enc.WordsEncoder.fit(values, enc.Response(response, 0, weights)).words
    assert len(found) <= 2  # of 800


def test_the_unit_of_weights_does_not_matter():
    frame, y = cars()
    values, weights = coded(frame["name"]), np.random.default_rng(0).uniform(1, 2, len(y))
    chosen = [
        enc.WordsEncoder.fit(
            values, enc.Response(standardized_response(y == "east", 2, w), 0, w)
        ).words
        for w in (weights, 100 * weights)
    ]
    assert chosen[0] == chosen[1]
    assert {"toyota", "datsun"} <= set(chosen[0])


def test_the_most_telling_come_first_and_there_are_at_most_so_many():
    random = np.random.default_rng(0)
    present = random.random((3000, 60)) < 0.1
    response = present @ np.linspace(3, 1, 60)
    response = ((response - response.mean()) / response.std())[:, None]
    texts = [
        f"{n}x " + " ".join(f"w{i}" for i in np.flatnonzero(row)) for n, row in enumerate(present)
    ]
    chosen = enc.WordsEncoder.fit(coded(texts), enc.Response(response, 0)).words
    assert len(chosen) == words.MAX_WORDS
    assert len(set(chosen[:10]) & {f"w{i}" for i in range(20)}) >= 8
    assert len(enc.WordsEncoder.fit(coded(texts)).words) == words.MAX_WORDS  # the most frequent


def test_a_word_is_seen_where_it_is():
    encoder = enc.WordsEncoder(["mr", "miss"], True)
    new = enc.Coded(np.array([0, 1, 2, -1, 0], np.int32), ["MR. X", "nobody", "Miss, Mr"])
    assert encoder.transform(new).tolist() == [
        [1, 0, 0],
        [0, 0, 0],
        [1, 1, 0],
        [0, 0, 1],
        [1, 0, 0],
    ]
    assert encoder.names("c") == ["c has 'mr'", "c has 'miss'", "c (missing)"]
    assert encoder.uses() == "2 words + missing"
    assert enc.encoder_from_dict(encoder.to_dict()) == encoder
    with pytest.raises(ValueError, match="holds something twice"):
        enc.encoder_from_dict({"kind": "words", "words": ["a", "a"], "missing": False})


def test_rows_in_another_order_choose_the_same():
    frame, y = cars()
    response = np.stack([(y == one) * 1.0 for one in ("east", "west")], 1)
    response = (response - response.mean(0)) / response.std(0)
    values = coded(frame["name"])
    chosen = enc.WordsEncoder.fit(values, enc.Response(response, 0)).words
    assert set(chosen) >= set(BRANDS)
    order = np.random.default_rng(1).permutation(len(y))
    again = coded(frame["name"].iloc[order])
    assert enc.WordsEncoder.fit(again, enc.Response(response[order], 0)).words == chosen


def test_names_tell_the_class(tmp_path):
    frame, y = cars()
    model = UDNClassifier(**SHORT).fit(frame, y)
    listed = {one["name"]: one for one in model.encoding_.listing()}
    assert listed["name"]["kind"] == "words"
    assert listed["name"]["used_as"].endswith("words")
    new, expected = cars(200, seed=1)
    assert model.score(new, expected) > 0.95
    without = UDNClassifier(**SHORT).fit(frame[["weight"]], y)
    assert without.score(new[["weight"]], expected) < 0.6
    model.save(tmp_path / "m.udn")
    again = UDNClassifier.load(tmp_path / "m.udn")
    np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))
    # A text of no known word, and none, are predicted too.
    odd = new.iloc[:2].assign(name=["a rickshaw", None])
    assert np.isfinite(model.predict_proba(odd)).all()
    # Texts that happen to be numbers come as such from a file.
    numbers = [model.predict_proba(new.assign(name=one)) for one in (17, "17")]
    np.testing.assert_array_equal(*numbers)


def test_numbers_by_words_and_polars():
    polars = pytest.importorskip("polars")
    frame, y = cars()
    value = np.where(y == "east", 3.0, -1.0)
    model = UDNRegressor(**SHORT).fit(polars.from_pandas(frame), value)
    new, expected = cars(100, seed=1)
    error = np.abs(model.predict(polars.from_pandas(new)) - np.where(expected == "east", 3.0, -1.0))
    assert np.median(error) < 0.5


def test_texts_of_which_no_word_tells_anything_are_left_out():
    random = np.random.default_rng(0)
    texts = [f"{random.choice(['red', 'blue'])} {i}" for i in range(200)]
    x = random.normal(size=200)
    frame = pd.DataFrame({"x": x, "note": texts})
    model = UDNClassifier(**SHORT).fit(frame, (x > 0).astype(int))
    note = model.encoding_.listing()[1]
    assert (note["kind"], note["used_as"]) == ("dropped", None)
    assert "no word tells of the target" in note["why"]
    assert model.encoding_.feature_names == ["x"]
    frame["note"] = [None if i % 4 == 0 else text for i, text in enumerate(texts)]
    model = UDNClassifier(**SHORT).fit(frame, (x > 0).astype(int))
    assert model.encoding_.feature_names == ["x", "note (missing)"]
    encoded = model.encoding_.transform_frame(frame)
    assert (encoded[:, 1] == frame["note"].isna()).all()
    with pytest.raises(TableError, match="no column says anything about the target"):
        UDNClassifier(**SHORT).fit(pd.DataFrame({"note": texts}), (x > 0).astype(int))


@pytest.mark.parametrize("stream", [False, True])
def test_in_files_and_pages(tmp_path, stream):
    frame, y = cars()
    frame["origin"] = y
    model = TableModel.fit(
        frame, "origin", stream=stream, references=False, epochs=12, width=16, seed=0
    )
    assert model.evaluate(frame)["accuracy"] > 0.9
    model.save(tmp_path / "m.udn")
    model.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "a text with &#x27;toyota&#x27;" in page or "a text with 'toyota'" in page
    assert "any other text" not in page  # there is none
    with pytest.raises(ExportError, match="'name' is free text"):
        export(model, tmp_path / "m.onnx")


def test_partial_fit_keeps_the_encoding(tmp_path):
    frame, y = cars()
    model = UDNClassifier(**SHORT).fit(frame, y)
    before = model.encoding_
    model.partial_fit(frame.iloc[:50], y[:50])
    assert model.encoding_ is before
    assert model.score(frame, y) > 0.9


def test_a_stream_keeps_the_texts_of_its_sample_alone(tmp_path, monkeypatch):
    frame, y = cars(2000)
    frame["origin"] = y
    monkeypatch.setattr(streaming, "SAMPLE_ROWS", 100)
    stores = []
    real = Encoding.fit.__func__

    def fit(cls, store, *rest, **options):
        stores.append(store)
        return real(cls, store, *rest, **options)

    monkeypatch.setattr(Encoding, "fit", classmethod(fit))
    TableModel.fit(frame, "origin", stream=True, references=False, epochs=1, width=8, seed=0)
    (store,) = stores
    assert len(store.values(store.columns[1]).levels) <= len(store.y) <= 110


@pytest.mark.parametrize("how", ["missing", "word"])
def test_texts_that_give_the_target_away_are_told(how):
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 200)
    texts = [f"{random.choice(['red', 'blue'])} {i}" for i in range(200)]
    if how == "missing":
        texts = [None if one else text for text, one in zip(texts, y, strict=True)]
    else:
        texts = [f"{['kept', 'cancelled'][one]} {text}" for text, one in zip(texts, y, strict=True)]
    frame = pd.DataFrame({"x": random.normal(size=200), "note": texts, "y": y.astype(str)})
    assert prepare(Table(frame), "y").giveaways == ("note",)
    frame["note"] = [f"{random.choice(['red', 'blue'])} {i}" for i in range(200)]
    assert prepare(Table(frame), "y").giveaways == ()
