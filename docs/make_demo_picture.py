"""Write docs/demo.gif, the moving picture of the demonstration page: one input, from the first
events to the answer.

    python docs/make_demo_picture.py [runs/digits/demo.html]

`make run` writes the page. It needs playwright, a chromium and Pillow, which comes with matplotlib.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
WIDTH, COLOURS, LIMIT = 860, 48, 1_500_000
# milliseconds of a step of the page at its normal pace, and steps between two frames
STEP, STRIDE = 60, 1
FRAME, LAST = 90, 2600  # milliseconds of a frame, and of the last one
MOST_FRAMES = 90


def frames_of(page: Page) -> list[Image.Image]:
    """Pictures of the stage while one input is watched, until its label is shown."""
    found: list[Image.Image] = []
    page.click("#next")
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
        frames = frames_of(page)
        browser.close()
    palette = frames[-1].quantize(COLOURS)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [FRAME] * (len(small) - 1) + [LAST]
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
