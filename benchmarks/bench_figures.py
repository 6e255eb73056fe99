"""From a reader's input to the changed picture, in headless Chromium, and the size of each output.

For every figure a slider or a button is moved many times. Two times are taken for each move, both in the page: the
work (the handler, style and layout, forced at once), and the frame (until the browser has handed the next frame on).
A frame at 60 Hz comes every 16.7 ms, so the second is bounded from below by the wait for it.
"""

from __future__ import annotations

import statistics
import sys

from playwright.sync_api import sync_playwright

from tests.conftest import CHROMIUM, CHROMIUM_FLAGS
from tests.figure_pages import FIGURES, output

MOVES = 100
_MEASURE = """
async (moves) => {
  const root = document.querySelector(".llf");
  const control = root.querySelector('input[type="range"]') || root.querySelector("button");
  const work = [], frame = [];
  for (let i = 0; i < moves; i++) {
    // Inputs come at any time between two frames.
    await new Promise((go) => setTimeout(go, 20 + 17 * ((i * 0.618) % 1)));
    const start = performance.now();
    if (control.type === "range") {
      control.value = (+control.value + 1) % (+control.max + 1);
      control.dispatchEvent(new Event("input", { bubbles: true }));
    } else (control.disabled ? [...root.querySelectorAll("button")].pop() : control).click();
    root.querySelector("svg").getBoundingClientRect();
    work.push(performance.now() - start);
    await new Promise((go) => requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = go;
      channel.port2.postMessage(0);
    }));
    frame.push(performance.now() - start);
  }
  return [work, frame];
}
"""


def measure() -> dict[str, dict[str, float]]:
    """Figure -> median milliseconds of work and to the frame, and bytes of the output."""
    results: dict[str, dict[str, float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        for name in FIGURES:
            html = output(name).html
            page.set_content(f"<!doctype html><body>{html}")
            work, frame = page.evaluate(_MEASURE, MOVES)
            results[name] = {
                "work_ms": statistics.median(work),
                "frame_ms": statistics.median(frame),
                "bytes": len(html.encode()),
            }
        browser.close()
    return results


def main() -> None:
    if CHROMIUM is None:
        sys.exit("No Chromium found: install it (apt-get install chromium).")
    print("| figure | input to picture, work | to the next frame | size |")
    print("|---|---|---|---|")
    for name, row in measure().items():
        print(f"| {name} | {row['work_ms']:.1f} ms | {row['frame_ms']:.1f} ms | {row['bytes'] / 1e3:.1f} kB |")


if __name__ == "__main__":
    main()
