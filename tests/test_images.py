"""Image sets: arrays, folders, and CIFAR-10 in all its forms."""

import hashlib
import http.server
import importlib.util
import io
import os
import pickle
import struct
import sys
import tarfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import serving
from unbounded.data import cifar10, downloads, pickles, uci
from unbounded.data.downloads import DataError
from unbounded.data.images import Images, from_arrays, from_folder

NAMES = ("ant", "bee", "crab")


def some_images(rows: int = 30, side: tuple[int, int] = (4, 5), seed: int = 0) -> Images:
    draw = np.random.default_rng(seed)
    x = draw.integers(0, 256, size=(rows, *side, 3), dtype=np.uint8)
    return Images(x, draw.permutation(np.arange(rows) % 3), NAMES, {"wasp": "bee"})


# Images


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros((2, 4, 4, 3))}, "x must be a NumPy array of uint8, got float64"),
        ({"x": [[1]]}, "x must be a NumPy array of uint8, got list"),
        ({"x": np.zeros((2, 4, 4), np.uint8)}, r"\(rows, height, width, channel\).*\(2, 4, 4\)"),
        ({"x": np.zeros((0, 4, 4, 3), np.uint8)}, r"none of them 0, got \(0, 4, 4, 3\)"),
        ({"y": np.zeros(2, np.int32)}, "y must be a NumPy array of int64, got int32"),
        ({"y": np.zeros(3, np.int64)}, r"y must be \(2,\) as x has rows, got \(3,\)"),
        ({"y": np.array([0, 3])}, "labels must be 0 to 2, .* 3 classes, got 0 to 3"),
        ({"y": np.array([-1, 0])}, "got -1 to 0"),
        ({"classes": ["ant", "bee", "crab"]}, "tuple of names"),
        ({"classes": ("ant", "bee", "ant")}, "'ant' is named twice"),
        ({"classes": ()}, "among the 0 classes"),
        ({"aliases": {"wasp": "hornet"}}, "'wasp' → 'hornet' does not lead to a class"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    right = {"x": np.zeros((2, 4, 4, 3), np.uint8), "y": np.array([0, 1]), "classes": NAMES}
    assert len(Images(**right)) == 2
    with pytest.raises(ValueError, match=words):
        Images(**(right | changes))


def test_only_relabels_in_the_order_of_the_names():
    data = some_images()
    found = data.only("crab", "wasp")
    assert found.classes == ("crab", "bee")
    kept = data.y != 0
    np.testing.assert_array_equal(found.x, data.x[kept])
    np.testing.assert_array_equal(found.y, np.where(data.y[kept] == 2, 0, 1))
    assert found.counts() == {"crab": 10, "bee": 10}
    assert found.only("wasp").counts() == {"bee": 10}
    assert found.only("crab").aliases == {}
    with pytest.raises(ValueError, match="no class 'dodo'; there are: ant, bee, crab"):
        data.only("ant", "dodo")
    with pytest.raises(ValueError, match="'bee' is named twice"):
        data.only("bee", "wasp")
    with pytest.raises(ValueError, match="name the classes to keep; there are: ant"):
        data.only()
    with pytest.raises(ValueError, match="no image is of ant"):
        data.take(data.y == 1).only("ant")


def test_take_by_rows_and_by_mask():
    data = some_images()
    found = data.take([4, 2, 2])
    np.testing.assert_array_equal(found.x, data.x[[4, 2, 2]])
    np.testing.assert_array_equal(found.y, data.y[[4, 2, 2]])
    assert found.classes == data.classes
    np.testing.assert_array_equal(data.take(data.y == 1).x, data.x[data.y == 1])
    with pytest.raises(ValueError, match=r"a mask must be \(30,\), got \(2,\)"):
        data.take([True, False])
    for wrong in ([], [1.5], [[1, 2]], np.zeros(30, bool)):
        with pytest.raises(ValueError, match="rows must be a list of whole numbers or a mask"):
            data.take(wrong)
    with pytest.raises(IndexError, match="30 is out of bounds"):
        data.take([30])


@given(
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=5),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
)
def test_a_stratified_split_holds_its_promises(sizes, fraction, seed):
    y = np.repeat(np.arange(len(sizes)), sizes)
    y = np.random.default_rng(seed).permutation(y)
    x = np.arange(len(y), dtype=np.uint8).reshape(-1, 1, 1, 1)  # each image knows its row
    data = Images(x, y, tuple("abcde"))  # there may be classes without images
    rest, held_out = data.stratified_split(fraction, seed)
    rows = [part.x[:, 0, 0, 0].astype(int) for part in (rest, held_out)]
    assert sorted([*rows[0], *rows[1]]) == list(range(len(y)))
    for part, chosen in zip((rest, held_out), rows, strict=True):
        np.testing.assert_array_equal(part.y, y[chosen])
        assert (np.diff(chosen) > 0).all()  # in their order
    taken = np.array([np.sum(held_out.y == label) for label in range(len(sizes))])
    ideal = fraction * np.array(sizes)
    assert (np.abs(taken - np.clip(ideal, 1, np.array(sizes) - 1)) < 1).all()
    if (ideal >= 1).all() and (ideal <= np.array(sizes) - 1).all():
        assert abs(len(held_out) - fraction * len(y)) <= 0.5 + 1e-9
    again = data.stratified_split(fraction, seed)[1]
    assert again.checksum() == held_out.checksum()


def test_splits_by_seed_and_their_errors():
    data = some_images(300)
    first, second = (data.stratified_split(0.1, seed)[1] for seed in (0, 1))
    assert first.counts() == {"ant": 10, "bee": 10, "crab": 10}
    assert first.checksum() != second.checksum()
    for fraction in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(ValueError, match="fraction must be between 0 and 1"):
            data.stratified_split(fraction, 0)
    rows = np.flatnonzero(data.y != 2)
    lonely = data.take([*rows, np.flatnonzero(data.y == 2)[0]])
    with pytest.raises(ValueError, match="'crab' has a single image"):
        lonely.stratified_split(0.5, 0)


def test_checksums_see_every_part():
    data = some_images()
    x, y = data.x.copy(), data.y.copy()
    x[3, 1, 1, 1] ^= 1
    y[0] = (y[0] + 1) % 3
    different = [
        data,
        replace(data, x=x),
        replace(data, y=y),
        replace(data, classes=("ant", "bee", "cod")),
        replace(data, x=data.x.reshape(30, 5, 4, 3)),
    ]
    assert len({one.checksum() for one in different}) == 5
    upside_down = Images(data.x[:, ::-1][:, ::-1], data.y, NAMES)  # other strides, same pixels
    assert upside_down.checksum() == data.checksum()


def test_how_images_are_shown():
    assert repr(some_images()) == "Images(30 of 4 × 5 × 3, 3 classes: ant, bee, crab)"
    many = Images(np.zeros((1, 2, 2, 1), np.uint8), np.array([0]), tuple(map(str, range(100))))
    assert repr(many).endswith("100 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, …)")


# From arrays


def test_layouts_are_recognised():
    data = some_images()
    by_planes = data.x.transpose(0, 3, 1, 2)
    for x in (data.x, by_planes, torch.from_numpy(by_planes.copy())):
        np.testing.assert_array_equal(from_arrays(x, data.y).x, data.x)
    grey = data.x[..., 0]
    for x in (grey, grey[..., None], grey[:, None]):
        np.testing.assert_array_equal(from_arrays(x, data.y).x, grey[..., None])
    square = np.arange(2 * 27, dtype=np.uint8).reshape(2, 3, 3, 3)
    with pytest.raises(ValueError, match=r'\(2, 3, 3, 3\)\? both .*layout="HWC".*layout="CHW"'):
        from_arrays(square, [0, 1])
    np.testing.assert_array_equal(from_arrays(square, [0, 1], layout="HWC").x, square)
    turned = from_arrays(square, [0, 1], layout="CHW").x
    np.testing.assert_array_equal(turned[1, 2, 0], square[1, :, 2, 0])
    five = np.zeros((2, 6, 7, 5), np.uint8)
    with pytest.raises(ValueError, match="no axis could be"):
        from_arrays(five, [0, 1])
    assert from_arrays(five, [0, 1], layout="CHW").x.shape == (2, 7, 5, 6)
    with pytest.raises(ValueError, match='"HWC" or "CHW", got \'NHWC\''):
        from_arrays(five, [0, 1], layout="NHWC")
    with pytest.raises(ValueError, match=r"got \(2, 9\)"):
        from_arrays(np.zeros((2, 9), np.uint8), [0, 1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_converted_exactly_or_refused(dtype):
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    divided = every.astype(dtype) / dtype(255)
    multiplied = every.astype(dtype) * dtype(1 / 255)
    if dtype is np.float32:
        assert (divided != multiplied).any()
        np.testing.assert_array_equal(from_arrays(multiplied, [0]).x[..., 0], every)
    np.testing.assert_array_equal(from_arrays(divided, [0]).x[..., 0], every)
    odd = divided.copy()
    odd[0, 3, 3] += dtype(0.002)
    with pytest.raises(ValueError, match=r"must be k/255 .*np\.rint\(255 \* x\)"):
        from_arrays(odd, [0])
    with pytest.raises(ValueError, match=r"got 0\.0 to 255\.0; .*astype\('uint8'\)"):
        from_arrays(every.astype(dtype), [0])
    odd[0, 3, 3] = np.nan
    with pytest.raises(ValueError, match="must be k/255"):
        from_arrays(odd, [0])


def test_other_numbers():
    every = np.arange(256).reshape(1, 16, 16)
    assert from_arrays(every, [0]).x.dtype == np.uint8
    for wrong in (every + 1, every - 1):
        with pytest.raises(ValueError, match="pixels must be 0 to 255, got"):
            from_arrays(wrong, [0])
    with pytest.raises(ValueError, match=r"bytes \(uint8\), got bool"):
        from_arrays(every > 3, [0])
    with pytest.raises(ValueError, match=r"none of them 0, got \(0, 16, 16, 1\)"):
        from_arrays(every[:0], np.zeros(0, int))


def test_labels_and_names():
    x = np.zeros((4, 2, 2), np.uint8)
    assert from_arrays(x, [0, 2, 2, 0]).classes == ("0", "1", "2")
    found = from_arrays(x, np.array([1, 0, 1, 1], np.uint8), ["no", "yes"])
    assert found.y.dtype == np.int64
    assert found.counts() == {"no": 1, "yes": 3}
    for words in (np.array(["b", "a", "b", "c"]), np.array(["b", "a", "b", "c"], object)):
        found = from_arrays(x, words)
        assert found.classes == ("a", "b", "c")
        np.testing.assert_array_equal(found.y, [1, 0, 1, 2])
    np.testing.assert_array_equal(from_arrays(x, words, ["c", "b", "a"]).y, [1, 2, 1, 0])
    with pytest.raises(ValueError, match="no class 'c'; there are: a, b"):
        from_arrays(x, words, ["a", "b"])
    with pytest.raises(ValueError, match="labels must be 0 to 1"):
        from_arrays(x, [0, 1, 2, 0], ["a", "b"])
    with pytest.raises(ValueError, match="got -1 to 1"):
        from_arrays(x, [0, 1, -1, 0])
    with pytest.raises(ValueError, match="whole numbers or names, got float64"):
        from_arrays(x, [0.0, 1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match=r"y must be \(rows,\), got \(4, 1\)"):
        from_arrays(x, [[0], [1], [1], [0]])


# From a folder

needs_pillow = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="Pillow is not installed"
)


def write_image(path: Path, pixels: np.ndarray, **options) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def folder_of(data: Images, folder: Path) -> None:
    for row, (image, label) in enumerate(zip(data.x, data.y, strict=True)):
        write_image(folder / data.classes[label] / f"{row:03}.png", image)


@needs_pillow
def test_a_folder_of_images(tmp_path):
    data = some_images(12)
    folder_of(data, tmp_path)
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / "readme.txt").write_text("not a class")
    (tmp_path / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "ant" / "._000.png").write_text("not one either")
    write_image(tmp_path / "bee" / "more" / "last.BMP", data.x[0])
    found = from_folder(tmp_path)
    assert found.classes == NAMES
    rows = [*np.argsort(data.y, kind="stable")]
    rows.insert(8, 0)  # "more/last.BMP" after the other bees
    np.testing.assert_array_equal(found.x, data.x[rows])
    np.testing.assert_array_equal(found.y, [0] * 4 + [1] * 5 + [2] * 4)
    assert from_folder(str(tmp_path)).checksum() == found.checksum()


@needs_pillow
def test_grey_and_coloured_images(tmp_path):
    data = some_images(2)
    grey = data.x[0, ..., 0]
    write_image(tmp_path / "a" / "0.png", grey)
    assert from_folder(tmp_path).x.shape == (1, 4, 5, 1)
    write_image(tmp_path / "a" / "1.png", data.x[1])
    opaque = np.full((4, 5, 1), 255, np.uint8)
    write_image(tmp_path / "a" / "2.png", np.concatenate([data.x[1], opaque], 2))
    found = from_folder(tmp_path).x
    np.testing.assert_array_equal(found[0], np.repeat(grey[..., None], 3, 2))
    np.testing.assert_array_equal(found[1], data.x[1])
    np.testing.assert_array_equal(found[2], data.x[1])
    write_image(tmp_path / "a" / "3.png", grey.astype(np.uint16) * 256)
    with pytest.raises(ValueError, match=r"3\.png has more than 8 bits a channel"):
        from_folder(tmp_path)


@needs_pillow
def test_palettes_with_transparency(tmp_path):
    from PIL import Image

    (tmp_path / "a").mkdir()
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([1, 0])
    image.save(tmp_path / "a" / "0.png", transparency=bytes([255, 128]))
    np.testing.assert_array_equal(from_folder(tmp_path).x[0, 0], [[40, 50, 60], [10, 20, 30]])


@needs_pillow
def test_photographs_are_turned_as_noted(tmp_path):
    from PIL import Image

    data = some_images(1)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    write_image(tmp_path / "a" / "0.png", data.x[0], exif=exif)
    np.testing.assert_array_equal(from_folder(tmp_path).x[0], np.rot90(data.x[0], -1))


@needs_pillow
def test_sizes(tmp_path):
    write_image(tmp_path / "a" / "0.png", np.full((6, 4, 3), 90, np.uint8))
    write_image(tmp_path / "b" / "1.png", np.full((8, 9, 3), 70, np.uint8))
    with pytest.raises(ValueError, match=r"1\.png is 8 × 9 .* are 6 × 4; pass size="):
        from_folder(tmp_path)
    found = from_folder(tmp_path, size=(3, 5))
    assert found.x.shape == (2, 3, 5, 3)
    assert [set(image.ravel()) for image in found.x] == [{90}, {70}]
    assert from_folder(tmp_path, size=4).x.shape == (2, 4, 4, 3)
    for wrong in (0, (3, -1), (1, 2, 3)):
        with pytest.raises(ValueError, match="size must be a positive number or"):
            from_folder(tmp_path, size=wrong)


@needs_pillow
@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_a_broken_file_is_named(kind, tmp_path):
    path = tmp_path / "a" / f"0.{kind}"
    big = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    write_image(path, big)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"hello"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"0\.{kind} cannot be read as an image"):
            from_folder(tmp_path)


@needs_pillow
def test_folders_that_are_not_of_this_kind(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no subfolders"):
        from_folder(tmp_path)
    folder_of(some_images(3), tmp_path)
    (tmp_path / "dodo").mkdir()
    with pytest.raises(ValueError, match="dodo has no images"):
        from_folder(tmp_path)


def test_without_pillow_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'unbounded\[images\]'"):
        from_folder(tmp_path)


# CIFAR-10: five batches of two images and a test batch of three, in all forms

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
SIZES = [2, 2, 2, 2, 2, 3]


def small_set(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.integers(0, 256, size=(13, 32, 32, 3), dtype=np.uint8)
    return x, draw.integers(0, 10, size=13, dtype=np.uint8)


def entry_of(x: np.ndarray, y: np.ndarray, url: str = "", md5: str = "") -> cifar10.Entry:
    pixels, labels = (hashlib.sha256(array.tobytes()).hexdigest() for array in (x, y))
    return cifar10.Entry(10, 3, pixels, labels, url, md5)


def batches_of(x: np.ndarray, y: np.ndarray):
    """Names, rows of planes `(rows, 3072)` and labels, as the authors lay them out."""
    planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    ends = np.cumsum(SIZES)
    for name, size, end in zip(BATCHES, SIZES, ends, strict=True):
        yield name, planes[end - size : end], y[end - size : end]


def old_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """A batch as Python 2 and an old NumPy wrote it, operation by operation."""

    def text(word: bytes) -> bytes:
        return b"U" + struct.pack("<B", len(word)) + word  # SHORT_BINSTRING

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)  # BININT

    dtype = b"cnumpy\ndtype\n" + b"(" + text(b"u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n"
    array += b"(cnumpy\nndarray\n" + b"(" + number(0) + b"t" + text(b"b") + b"tR"
    raw = pixels.tobytes()
    array += b"(" + number(1) + b"(" + number(len(pixels)) + number(3072) + b"t" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", len(raw)) + raw + b"tb"  # BINSTRING
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    names = b"](" + b"".join(text(b"leptodactylus_%d.png" % i) for i in range(len(labels))) + b"e"
    items = text(b"data") + array + text(b"labels") + listed
    items += text(b"batch_label") + text(b"training batch 1 of 5") + text(b"filenames") + names
    return b"\x80\x02}(" + items + b"u."


def new_pickle(protocol: int):
    def dump(pixels: np.ndarray, labels: np.ndarray) -> bytes:
        return pickle.dumps({"data": pixels, "labels": labels.astype(">i4")}, protocol=protocol)

    return dump


def binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], pixels], 1).tobytes()


def write_batches(folder: Path, x: np.ndarray, y: np.ndarray, dump) -> Path:
    folder.mkdir(parents=True)
    for name, pixels, labels in batches_of(x, y):
        (folder / (f"{name}.bin" if dump is binary else name)).write_bytes(dump(pixels, labels))
    (folder / "batches.meta").write_bytes(b"not needed")
    return folder


def archive_of(x: np.ndarray, y: np.ndarray, dump=old_pickle, leave_out: str = "") -> bytes:
    """The bytes of an archive, test batch first: order must not matter."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, pixels, labels in reversed(list(batches_of(x, y))):
            if name == leave_out:
                continue
            content = dump(pixels, labels)
            ending = ".bin" if dump is binary else ""
            info = tarfile.TarInfo(f"cifar-10-batches-{'bin' if ending else 'py'}/{name}{ending}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return written.getvalue()


def put(form: str, folder: Path, x: np.ndarray, y: np.ndarray) -> Path:
    """The set in one of its forms, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if form == "npz":
        np.savez(folder / "cifar10.npz", x=x, y=y)
        return folder / "cifar10.npz"
    if form.endswith(".tar.gz"):
        dump = binary if "binary" in form else old_pickle
        (folder / form).write_bytes(archive_of(x, y, dump))
        return folder / form
    dumps = {"old": old_pickle, "bin": binary} | {f"py{p}": new_pickle(p) for p in range(2, 6)}
    name = "cifar-10-batches-bin" if form == "bin" else "cifar-10-batches-py"
    return write_batches(folder / name, x, y, dumps[form])


FORMS = ["npz", "old", "py2", "py3", "py4", "py5", "bin"]
FORMS += ["cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same(form, tmp_path, monkeypatch):
    x, y = small_set()
    entry = entry_of(x, y)
    path = put(form, tmp_path / "data" / "cifar", x, y)
    monkeypatch.setenv(downloads.FOLDER, str(tmp_path / "data"))
    for folder in (tmp_path / "data" / "cifar", tmp_path / "data", path, str(path), None):
        train, test = cifar10.load(folder, entry=entry)
        np.testing.assert_array_equal(train.x, x[:10])
        np.testing.assert_array_equal(test.x, x[10:])
        np.testing.assert_array_equal(train.y, y[:10])
        np.testing.assert_array_equal(test.y, y[10:])
        assert train.classes == test.classes == cifar10.CLASSES
    part = "labels" if form == "old" else "pixels"
    with pytest.raises(DataError, match=f"damaged, or not the original: .* of its {part} is"):
        cifar10.load(path, entry=replace(entry, **{part: "0" * 64}))


def test_the_old_pickle_of_the_tests_is_one():
    """NumPy reads it too, so the reader is tested on what the authors wrote."""
    x, y = small_set()
    for _, pixels, labels in batches_of(x, y):
        found = pickle.loads(old_pickle(pixels, labels), encoding="bytes")
        np.testing.assert_array_equal(found[b"data"], pixels)
        assert found[b"labels"] == list(labels)


def test_the_paper_says_car(tmp_path):
    x, y = small_set()[0], np.arange(13, dtype=np.uint8) % 10
    put("npz", tmp_path, x, y)
    train, _ = cifar10.load(tmp_path, entry=entry_of(x, y))
    easy = train.only("deer", "car")
    assert easy.classes == ("deer", "automobile")
    np.testing.assert_array_equal(easy.x, x[[1, 4]])
    np.testing.assert_array_equal(easy.y, [1, 0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", [0.3, 0.9])
def test_damage_is_told(form, where, tmp_path):
    """A byte changed, or the end missing: an error that names the file."""
    x, y = small_set()
    path = put(form, tmp_path, x, y)
    batch = "data_batch_2.bin" if form == "bin" else "data_batch_2"
    file = path / batch if path.is_dir() else path
    whole = file.read_bytes()
    place = int(where * len(whole))
    for damaged in (
        whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :],
        whole[:place],
        b"",
    ):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=path.name.replace(".", r"\.")):
            cifar10.load(tmp_path, entry=entry_of(x, y))
    file.unlink()
    if path.is_dir():
        with pytest.raises(DataError, match=f"{path.name} has no data_batch_2"):
            cifar10.load(tmp_path, entry=entry_of(x, y))


def test_a_binary_batch_with_a_piece_of_an_image(tmp_path):
    x, y = small_set()
    file = put("bin", tmp_path, x, y) / "data_batch_5.bin"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"5\.bin must have 3073 bytes an image, got 6141 in all"):
        cifar10.load(tmp_path, entry=entry_of(x, y))


def test_an_archive_without_a_batch(tmp_path):
    x, y = small_set()
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(archive_of(x, y, leave_out="data_batch_4"))
    with pytest.raises(DataError, match=r"tar\.gz has no data_batch_4"):
        cifar10.load(tmp_path, entry=entry_of(x, y))


def test_nothing_is_there(tmp_path):
    (tmp_path / "uci").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"has no CIFAR-10.*--data.*cifar10\.npz, cifar-10"):
            cifar10.load(folder)


def test_arrays_of_another_kind(tmp_path):
    x, y = small_set()
    entry = entry_of(x, y)
    np.savez(tmp_path / "cifar10.npz", x=x, labels=y)
    with pytest.raises(DataError, match=r"cifar10\.npz is not CIFAR-10: .*y"):
        cifar10.load(tmp_path, entry=entry)
    np.savez(tmp_path / "cifar10.npz", x=x / 255, y=y)
    with pytest.raises(DataError, match=r"x must be bytes .* got float64 and uint8"):
        cifar10.load(tmp_path, entry=entry)
    np.savez(tmp_path / "cifar10.npz", x=x, y=y.astype(np.int64) + 256)
    with pytest.raises(DataError, match="labels must be 0 to 9, got 2"):
        cifar10.load(tmp_path, entry=entry)
    np.savez(tmp_path / "cifar10.npz", x=x[:-1], y=y[:-1])
    with pytest.raises(DataError, match=r"must be 13 images \(32, 32, 3\) .* got \(12, 32"):
        cifar10.load(tmp_path, entry=entry)
    np.savez(tmp_path / "cifar10.npz", x=x, y=y.astype(np.int64))
    assert len(cifar10.load(tmp_path, entry=entry).train) == 10


class Hostile:
    """Makes a pickle that runs a command when it is loaded in the usual way."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_refused_and_not_run(protocol, tmp_path):
    mark = tmp_path / "mark"
    content = pickle.dumps({"data": Hostile(mark), "labels": [1]}, protocol=protocol)
    pickle.loads(content)
    assert mark.exists()  # it works where it is let
    mark.unlink()
    folder = write_batches(tmp_path / "cifar-10-batches-py", *small_set(), old_pickle)
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_3 is not a batch.*it asks for"):
        cifar10.load(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", r"asks for os\.system"),
        (b"cnumpy\nload\n(S'x'\ntR.", r"asks for numpy\.load"),
        (b"cbuiltins\neval\n(S'1'\ntR.", r"asks for builtins\.eval"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.", r"asks for numpy\.dtype\.__init__"),
        (b"(S'true'\nios\nsystem\n.", r"asks for os\.system"),
        (b"Pabc\n.", "persistent"),
    ],
)
def test_names_are_refused_however_they_are_asked_for(program, words):
    with pytest.raises(pickle.UnpicklingError, match=words):
        pickles.read(program)


@pytest.mark.parametrize(("module", "name"), sorted(pickles._KNOWN))
def test_a_pickle_cannot_change_the_classes_that_read_it(module, name):
    """BUILD with a state for slots sets attributes, if the object does not take its own state."""
    found = pickles._KNOWN[module, name]
    program = f"c{module}\n{name}\n(N}}S'planted'\nI1\nst".encode() + b"b."
    with pytest.raises(TypeError, match="__setstate__"):
        pickles.read(program)
    assert not hasattr(found, "planted")


def test_arrays_of_objects_are_refused():
    content = pickle.dumps({"data": np.array([[1], "a"], object)})
    with pytest.raises(ValueError, match=r"dtype and bytes"):
        pickles.array(pickles.read(content)["data"])
    floats = pickles.read(pickle.dumps(np.zeros(3)))
    with pytest.raises(ValueError, match="whole numbers, got 'f8'"):
        pickles.array(floats)


@given(
    protocol=st.integers(0, 5),
    code=st.sampled_from(["u1", "<i2", ">i4", "<u8"]),
    shape=st.lists(st.integers(1, 4), max_size=3),
    columns=st.booleans(),
)
def test_arrays_of_whole_numbers_come_back(protocol, code, shape, columns):
    wanted = np.arange(np.prod(shape, dtype=int)).astype(code).reshape(shape)
    wanted = np.asfortranarray(wanted) if columns else wanted
    found = pickles.array(pickles.read(pickle.dumps(wanted, protocol=protocol)))
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([1, 2], "a dictionary was expected, got list"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "labels"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [1, 2]}, r"got uint8 \(2, 3071\)"),
        ({"data": np.zeros((2, 3072), np.int8), "labels": [1, 2]}, "got int8"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2, 3]}, r"int64 \(3,\)"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]}, "a list of whole numbers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, -2]}, "0 to 9, got -2"),
    ],
)
def test_pickles_that_are_no_batches(batch, words, tmp_path):
    folder = write_batches(tmp_path / "cifar-10-batches-py", *small_set(), old_pickle)
    (folder / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=f"test_batch is not a batch of CIFAR-10: .*{words}"):
        cifar10.load(tmp_path)


# CIFAR-10 from a server


@contextmanager
def served(content: bytes, cut: int | None = None):
    """A server on loopback that sends these bytes, or announces them and stops after `cut`."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if self.path != "/set.tar.gz":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:cut])

        def log_message(self, *words):
            pass

    with serving(Handler) as address:
        yield f"{address}/set.tar.gz", asked


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_download_is_checked_and_kept(tmp_path, monkeypatch, no_folder):
    x, y = small_set()
    content = archive_of(x, y)
    monkeypatch.setenv(downloads.CACHE, str(tmp_path / "cache"))
    with served(content) as (url, asked):
        entry = entry_of(x, y, url, md5(content))
        for _ in range(2):
            train, test = cifar10.load(entry=entry)
            np.testing.assert_array_equal(train.x, x[:10])
            np.testing.assert_array_equal(test.y, y[10:])
        assert len(asked) == 1  # the second time nothing is fetched
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["cifar10.npz"]
    np.savez(tmp_path / "cache" / "cifar10.npz", x=x ^ 1, y=y)
    with pytest.raises(DataError, match=r"pixels is .*; delete it to have it downloaded again"):
        cifar10.load(entry=entry)


@pytest.mark.parametrize("wrong", ["md5", "pixels", "labels", "cut", "batch", "noise", "url"])
def test_a_wrong_download_leaves_nothing_behind(wrong, tmp_path, no_folder):
    x, y = small_set()
    content = archive_of(x, y, leave_out="test_batch" if wrong == "batch" else "")
    content = b"no archive at all" * 100 if wrong == "noise" else content
    with served(content, cut=len(content) // 2 if wrong == "cut" else None) as (url, _):
        entry = entry_of(x, y, url, md5(content))
        if wrong in ("md5", "pixels", "labels"):
            entry = replace(entry, **{wrong: "0" * 64})
        elif wrong == "url":
            entry = replace(entry, url=f"{url}.bz2")
        words = {
            "md5": "MD5 of what .* it should be 0000.*--data",
            "pixels": "checksum of its pixels .* should be 0000",
            "labels": "checksum of its labels .* should be 0000",
            "cut": r"set\.tar\.gz (ended after|cannot be downloaded).*--data",
            "batch": r"set\.tar\.gz has no test_batch",
            "noise": r"set\.tar\.gz is damaged",
            "url": "cannot be downloaded .*404.*--data",
        }
        with pytest.raises(DataError, match=words[wrong]):
            cifar10.load(cache=tmp_path, entry=entry)
    assert list(tmp_path.iterdir()) == []


def test_nobody_is_there(tmp_path, no_folder):
    with served(b"") as (url, _):
        pass
    with pytest.raises(DataError, match="cannot be downloaded"):
        cifar10.load(cache=tmp_path / "cache", entry=entry_of(*small_set(), url))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_leaves_no_temporary_file(tmp_path, monkeypatch, no_folder):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    x, y = small_set()
    content = archive_of(x, y)
    with served(content) as (url, _):
        monkeypatch.setattr(np, "savez", fail)
        with pytest.raises(OSError, match=r"cannot write .*: no space left"):
            cifar10.load(cache=tmp_path, entry=entry_of(x, y, url, md5(content)))
    assert list(tmp_path.iterdir()) == []


def test_where_downloads_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(downloads.CACHE, raising=False)
    assert downloads.cache_folder(None, "cifar10") == tmp_path / ".cache/unbounded/cifar10"
    monkeypatch.setenv(downloads.CACHE, "elsewhere")
    assert downloads.cache_folder(None, "cifar10") == Path("elsewhere")
    assert downloads.cache_folder("here", "cifar10") == Path("here")


def test_one_folder_serves_every_data_set(tmp_path, monkeypatch):
    x, y = small_set()
    put("npz", tmp_path / "cifar", x, y)
    (tmp_path / "uci").mkdir()
    masks = np.zeros((1, 1), np.uint8)
    np.savez(
        tmp_path / "uci" / "yacht.npz",
        X=np.ones((3, 2)),
        y=np.ones(3),
        test_masks=masks,
        gap_test_masks=masks,
    )
    monkeypatch.setenv(downloads.FOLDER, str(tmp_path))
    assert uci.load("yacht").x.shape == (3, 2)
    assert len(cifar10.load(entry=entry_of(x, y)).test) == 3


# The real set


def test_the_real_set():
    folder = os.environ.get(downloads.FOLDER)
    if not folder:
        pytest.skip(f"{downloads.FOLDER} does not say where CIFAR-10 is")
    try:
        path = cifar10.find(Path(folder))
    except DataError as error:
        pytest.skip(str(error))
    train, test = cifar10.read(path)
    assert train.x.shape == (50_000, 32, 32, 3)
    assert set(train.counts().values()) == {5000}
    assert set(test.counts().values()) == {1000}
    # The batches as the authors publish them, by the digests of their binary files.
    known = {
        "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
    }
    images = [train.take(np.arange(i, i + 10_000)) for i in range(0, 50_000, 10_000)]
    for (name, digest), part in zip(known.items(), [*images, test], strict=True):
        planes = part.x.transpose(0, 3, 1, 2).reshape(len(part), -1)
        assert md5(binary(planes, part.y.astype(np.uint8))) == digest, name
