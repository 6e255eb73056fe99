"""Pictures of every figure, for eyes: `make screenshots` writes them into screenshots/.

Light and dark at 780 px, narrow at 320 and 400 px, wide at 1,400 px, some states behind controls, and the still picture
that stands where scripts are off.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.conftest import CHROMIUM, CHROMIUM_FLAGS
from tests.figure_pages import FIGURES, Hands, output

FOLDER = Path(__file__).parents[1] / "screenshots"
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 780, "height": 400}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 780, "height": 400}, "color_scheme": "dark"},
    "320": {"viewport": {"width": 320, "height": 400}, "color_scheme": "light", "device_scale_factor": 2},
    "400": {"viewport": {"width": 400, "height": 400}, "color_scheme": "dark", "device_scale_factor": 2},
    "1400": {"viewport": {"width": 1400, "height": 400}, "color_scheme": "light"},
    "still": {"viewport": {"width": 780, "height": 400}, "color_scheme": "light", "java_script_enabled": False},
    "played": {"viewport": {"width": 780, "height": 400}, "color_scheme": "light"},
}
# What is done to a figure before its "played" picture: moves of `Hands`.
PLAYED: dict[str, list[tuple[Any, ...]]] = {
    "batching": [("Longest output", 5), ("New random requests",)],
    "decode_roofline": [("Context C", 0), ("Batch B", 17)],
    "interference": [("Prefill", 1), ("FLOP/s reached", 1)],
    "kv_memory": [("Step",), ("Fork oldest",), ("Step",), ("Add request",), ("Add request",), ("Step",), ("Step",)],
    "speculative_position": [("Vocabulary", 1), ("Draft quality λ", 8), ("Sample 2,000",)],
    "speculative_rounds": [("Draft length γ", 7), ("Acceptance rate α", 5), ("Simulate 12 more",)],
}


def main() -> None:
    if CHROMIUM is None:
        sys.exit("No Chromium found: install it (apt-get install chromium).")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        for view, options in VIEWS.items():
            page = browser.new_context(reduced_motion="reduce", **options).new_page()
            for name in FIGURES:
                page.set_content(f"<!doctype html><body style='margin:0'>{output(name).html}")
                if view == "played":
                    hands = Hands(page)
                    for label, *value in PLAYED[name]:
                        hands.move(name, label, *value)
                    hands.read(name)
                page.screenshot(path=FOLDER / f"{name}-{view}.png", full_page=True)
            page.context.close()
        browser.close()
    print(f"{len(VIEWS) * len(FIGURES)} pictures in {FOLDER.name}/")


if __name__ == "__main__":
    main()
