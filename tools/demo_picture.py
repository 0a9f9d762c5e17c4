"""The picture of README and of the site's first page: the head of the demo's page.

python tools/demo_picture.py report.html docs/demo.png

`make demo` writes report.html. Needs Chromium, as the tests of the playground do, and Pillow.
"""

import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.browser import Browser

WIDTH = 1180
SHOWN = 3  # sections: what it learnt, how deep, accuracy at each depth
MARGIN = 10

# Where the first sections of the page stand.
PLACE = f"""(() => {{
  const boxes = [...document.querySelectorAll("section")].slice(0, {SHOWN});
  const found = boxes.map(box => box.getBoundingClientRect());
  return [Math.min(...found.map(r => r.top)), Math.max(...found.map(r => r.bottom)),
          Math.min(...found.map(r => r.left)), Math.max(...found.map(r => r.right))];
}})()"""


def main(page: str, picture: str) -> int:
    """Write the picture."""
    with Browser() as browser:
        browser.look(WIDTH, 900)
        browser.open(Path(page))
        top, bottom, left, right = browser.run(PLACE)
        clip = {"x": left - MARGIN, "y": top - MARGIN, "width": right - left + 2 * MARGIN}
        clip |= {"height": bottom - top + 2 * MARGIN, "scale": 1}
        browser.picture(Path(picture), clip)
    # A palette: a third of the bytes, and nobody sees the difference.
    with Image.open(picture) as image:
        shown = image.convert("RGB")
    shown.quantize(256, Image.Quantize.MAXCOVERAGE).save(picture, optimize=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
