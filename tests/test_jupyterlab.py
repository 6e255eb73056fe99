"""A learner at work in a real JupyterLab: open, run, read the message, type the answer, see it pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebooks import ROOT

LESSON = "01_kv_cache"
ANSWER = "def kv_bytes_per_token(cfg): return {} * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv"

pytestmark = pytest.mark.browser


def code_cell(page, text: str):  # type: ignore[no-untyped-def]
    """The code cell that holds a text."""
    return page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=text)).first


def type_and_run(page, cell, source: str) -> None:  # type: ignore[no-untyped-def]
    """Replace a cell's source by typing, and run it."""
    cell.locator(".cm-content").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")


def run_cell(page, cell) -> None:  # type: ignore[no-untyped-def]
    cell.locator(".cm-content").first.click()
    page.keyboard.press("Control+Enter")


def test_a_learner_solves_the_first_exercise(chromium, jupyterlab: Callable[[], tuple[str, Path]]) -> None:  # type: ignore[no-untyped-def]
    url, folder = jupyterlab()
    shutil.copy(ROOT / "notebooks" / LESSON / f"{LESSON}.ipynb", folder)
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(f"{url}/lab/tree/{LESSON}.ipynb")
    page.get_by_text("Python 3").first.wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for()

    page.locator(".lm-MenuBar-itemLabel", has_text="Run").click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
    check = code_cell(page, "check.kv_bytes_per_token(kv_bytes_per_token)")
    check.get_by_text("kv_bytes_per_token: not written yet.").first.wait_for()

    exercise = page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text="def kv_bytes_per_token")).first
    type_and_run(page, exercise, ANSWER.format(1))
    run_cell(page, check)
    check.get_by_text("Likely mistake (factor-2)").wait_for()
    assert "lessonlib/check" not in check.inner_text(), "no frames of the library"

    type_and_run(page, exercise, ANSWER.format(2))
    run_cell(page, check)
    check.get_by_text("✓ kv_bytes_per_token").wait_for()

    question = code_cell(page, "quiz.kv_cache.bytes_of_70b()")
    question.locator("summary", has_text="2.5 MiB").click()
    question.get_by_text("Only the 8 KV heads are stored").wait_for()
    page.close()
