"""Write docs/demo.gif, the moving picture of the demonstration page: two inputs, from the first
events to the answer: one that stops at the median step, and one that takes longer.

    python docs/make_demo_picture.py [runs/digits/demo.html]

`make run` writes the page. It needs playwright, a chromium and Pillow, which comes with matplotlib.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
WIDTH, COLOURS, LIMIT = 960, 96, 1_500_000
# milliseconds of a step of the page at its normal pace, and steps between two frames
STEP, STRIDE = 60, 1
FRAME, LAST = 90, 2600  # milliseconds of a frame, and of the last one
MOST_FRAMES = 90
INPUTS, SHARES = 40, (0.5, 0.85)
# the inputs at these shares of the first ones that are answered rightly, sorted by stopping time
TYPICAL = """([n, shares]) => {
  const rule = agreestop.racers.at(-1);
  const inputs = Array.from({ length: n }, (_, k) => k + 1);
  const found = inputs.map((input) => ({ input, ...agreestop.decide(input, rule) }));
  const hit = ({ input, classes }) => `${classes}` === `${agreestop.labels[input]}`;
  const right = found.filter(hit);
  right.sort((one, other) => one.time - other.time);
  return shares.map((share) => right[Math.floor(share * right.length)].input);
}"""


def frames_of(page: Page, index: int) -> list[Image.Image]:
    """Pictures of the stage while one input is watched, until its label is shown."""
    found: list[Image.Image] = []
    while f"input {index + 1} of" not in page.inner_text("#which"):
        page.click("#next")
    page.mouse.move(0, 0)
    for _ in range(MOST_FRAMES):
        found.append(Image.open(io.BytesIO(page.locator(".stage").screenshot())).convert("RGB"))
        if "the label is" in page.inner_text("#verdict"):
            break
        page.clock.run_for(STEP * STRIDE)
    return found


def write_picture(page_file: Path, path: Path) -> int:
    """Write the picture; its number of frames."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.clock.install(time=0)
        page.goto(page_file.resolve().as_uri())
        # the page moves only between two pictures, however long these take
        page.clock.pause_at(60_000)
        page.click("#play")  # it plays by itself; now it pauses
        parts = [frames_of(page, index) for index in page.evaluate(TYPICAL, [INPUTS, SHARES])]
        browser.close()
    frames = [frame for part in parts for frame in part]
    ends = np.concatenate([np.asarray(part[-1]) for part in parts])
    palette = Image.fromarray(ends).quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [one for part in parts for one in [FRAME] * (len(part) - 1) + [LAST]]
    small[0].save(
        path, save_all=True, append_images=small[1:], duration=times, loop=0, optimize=True
    )
    if path.stat().st_size > LIMIT:
        raise SystemExit(
            f"{path} has {path.stat().st_size:,} bytes, more than {LIMIT:,}: use fewer colours or "
            "frames."
        )
    return len(small)


if __name__ == "__main__":
    target = ROOT / "docs" / "demo.gif"
    count = write_picture(
        Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "runs/digits/demo.html"), target
    )
    print(f"Wrote {target.relative_to(ROOT)}: {count} frames, {target.stat().st_size:,} bytes.")
