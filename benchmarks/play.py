"""`python -m benchmarks.play`: epochs a second of the playground, in Chromium without a window.

The spiral of the library's recipe: 1024 points to learn from and as many held-out ones, width 32,
batches of 256, q(ℓ) held at 8 depths, the preset "settled" with its look at the held-out points
after each epoch. Once the trainer alone, once the page itself with all that it draws. Seconds of
the clock, and of the processor that the renderer took: on a busy machine they differ.
"""

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.browser import Browser
from unbounded.play import page

TARGET = 30.0
SECONDS = 10.0
WARM = 20  # epochs before the clock starts
SETTINGS = """{
  kind: "spiral", omega: 10, rows: 1024, seed: 0, width: 32, norm: true, init: "he",
  rule: "held-out", place: 4, spread: 1.7, ascent: { speed: 1e-9 }, prior: 0.5, lr: 0.005,
  depthRatio: 0.1, average: 0.998, clip: 1, batch: 256,
}"""


def processor_seconds(browser: Browser) -> float:
    """What all renderers have taken so far."""
    found = browser.call("SystemInfo.getProcessInfo", of_page=False)["processInfo"]
    return sum(float(one["cpuTime"]) for one in found if one["type"] == "renderer")


def measured(browser: Browser, script: str) -> tuple[float, float]:
    """Epochs a second of the clock and of the processor; the script says how many it made."""
    start, before = time.perf_counter(), processor_seconds(browser)
    epochs = browser.run(script)
    spent, taken = time.perf_counter() - start, processor_seconds(browser) - before
    return epochs / spent, epochs / max(taken, 1e-9)


def trainer_alone(
    browser: Browser, folder: Path, seconds: float, warm: int = WARM
) -> tuple[float, float]:
    """The trainer in a page without anything else."""
    path = folder / "trainer.html"
    path.write_text(f"<!DOCTYPE html><meta charset='utf-8'><script>{page.trainer()}</script>")
    browser.open(path)
    browser.run(f"globalThis.trainer = new Trainer({SETTINGS}, makeData({SETTINGS}))")
    browser.run(f"for (let e = 0; e < {warm}; e++) trainer.run()")
    assert browser.run("trainer.last") == 8
    slices, each = max(1, round(seconds)), min(1.0, seconds)
    script = "(() => { const start = performance.now(); let epochs = 0;"
    script += f"while (performance.now() - start < {1000 * each}) {{ trainer.run(); epochs++; }}"
    script += "return epochs; })()"
    found = [measured(browser, script) for _ in range(slices)]
    return max(wall for wall, _ in found), max(own for _, own in found)


def whole_page(
    browser: Browser, folder: Path, seconds: float, warm: int = WARM
) -> tuple[float, float]:
    """The page, with pictures and charts."""
    path = folder / "playground.html"
    path.write_text(page.html())
    browser.look(1280, 900)
    browser.open(path)
    browser.run(
        f"(() => {{ settings = () => ({SETTINGS}); reset(true); }})()"  # q held at 8 depths
    )
    browser.wait(f"state.epoch >= {warm}")
    wait = "new Promise((done) => { const before = state.epoch; setTimeout(() => done("
    wait += f"state.epoch - before), {1000 * seconds}); }})"
    found = measured(browser, wait)
    assert browser.run("state.layers") == 8
    return found


def main(seconds: float = SECONDS) -> int:
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        alone = trainer_alone(browser, Path(folder), seconds)
        whole = whole_page(browser, Path(folder), seconds)
    print("epochs a second            of the clock  of the processor")
    for name, (wall, own) in (("the trainer alone", alone), ("the page, drawing", whole)):
        print(f"{name:<26} {wall:>12.1f} {own:>17.1f}")
    print(f"to reach: {TARGET:.0f}; the page has {len(page.html().encode()) / 1000:.1f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
