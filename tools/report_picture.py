"""The picture of README's table section: two halves of a model's page, side by side.

python tools/report_picture.py house.html docs/report.png

`unbounded fit` writes such a page. Needs Chromium, as the tests of the playground do, and Pillow.
"""

import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.browser import Browser

WIDTH, SHOWN = 1200, 1500  # of the page, and of the picture
LEFT, RIGHT = 2, 5  # sections: findings and scores beside their title; then depths and columns
MARGIN = 8

# Where the sections of the page end, and its left and right edge.
PLACE = """(() => {
  const found = [...document.querySelectorAll("section")].map(box => box.getBoundingClientRect());
  return [found.map(r => [r.top, r.bottom]),
          Math.min(...found.map(r => r.left)), Math.max(...found.map(r => r.right))];
})()"""


def main(page: str, picture: str) -> int:
    """Write the picture."""
    halves = []
    with Browser() as browser:
        browser.look(WIDTH, 900)
        browser.open(Path(page))
        ends, left, right = browser.run(PLACE)
        for top, bottom in ((0, ends[LEFT - 1][1]), (ends[LEFT][0], ends[RIGHT - 1][1])):
            above = max(0, top - MARGIN)
            clip = {"x": left - MARGIN, "y": above, "scale": 1}
            clip |= {"width": right - left + 2 * MARGIN, "height": bottom + MARGIN - above}
            browser.picture(Path(picture), clip)
            with Image.open(picture) as image:
                halves.append(image.convert("RGB"))
    size = sum(half.width for half in halves), max(half.height for half in halves)
    whole = Image.new("RGB", size, halves[0].getpixel((1, 1)))
    for k, half in enumerate(halves):
        whole.paste(half, (k * halves[0].width, (size[1] - half.height) // 2))
    shown = whole.resize((SHOWN, round(SHOWN * size[1] / size[0])), Image.Resampling.LANCZOS)
    # A palette: a third of the bytes, and nobody sees the difference.
    shown.quantize(96, Image.Quantize.MEDIANCUT).save(picture, optimize=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
