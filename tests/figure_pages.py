"""Pages with figures, and hands to move their controls: shared by tests, screenshots and benchmark."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import nbformat
from nbconvert import HTMLExporter

from lessonlib import figures

FIGURES: dict[str, Callable[..., figures.Figure]] = {
    name: getattr(figures, name) for name in figures.__all__ if name != "Figure"
}


@functools.cache
def output(name: str) -> figures.Figure:
    """The figure with the reference, made once."""
    return FIGURES[name]()


# In the page: find the figure, move one control as a reader's input would, and read every reading.
_HANDS = """
window.figureOf = (name) => document.querySelector(`.llf[data-llf^="${name}-"]`);
window.move = (name, label, value) => {
  const root = figureOf(name);
  const range = [...root.querySelectorAll('input[type="range"]')].find((e) => e.getAttribute("aria-label") === label);
  if (range) {
    range.value = value;
    range.dispatchEvent(new Event("input", { bubbles: true }));
    return;
  }
  const group = [...root.querySelectorAll("fieldset")].find((e) => e.querySelector("legend").textContent === label);
  if (group) {
    [...group.querySelectorAll("input")][value].click();
    return;
  }
  const button = [...root.querySelectorAll("button")].find((e) => e.textContent === label);
  if (!button) throw new Error(`no control ${label} in ${name}`);
  button.click();
};
window.read = (name) => Object.fromEntries(
  [...figureOf(name).querySelectorAll("dd")].map((e) => [e.dataset.reading, e.dataset.value]));
void 0;
"""


class Hands:
    """Moves the controls of the figures of a page. The moves are made, one after the other, at the next `read`.

    Args:
        page: a Playwright page that shows figures with scripts on.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self._moves: list[list[Any]] = []
        page.evaluate(_HANDS)

    def move(self, figure: str, label: str, value: int = 0) -> None:
        """Set a slider to its stop number `value`, choose the option of that number, or press a button."""
        self._moves.append([figure, label, value])

    def read(self, figure: str) -> dict[str, Any]:
        """Readings by key: a number, a list of numbers, or text."""
        moves, self._moves = self._moves, []
        call = "([figure, moves]) => { moves.forEach((one) => move(...one)); return read(figure); }"
        return {key: _value(value) for key, value in self.page.evaluate(call, [figure, moves]).items()}


def _value(words: str) -> Any:
    try:
        numbers = [float(word) for word in words.split(",")]
    except ValueError:
        return words
    return numbers[0] if len(numbers) == 1 else numbers


def notebook() -> nbformat.NotebookNode:
    """A notebook with every figure, each cell with its output."""
    cells = [nbformat.v4.new_code_cell("from lessonlib import figures", id="set-up")]
    for name in FIGURES:
        shown = nbformat.v4.new_output("execute_result", output(name)._repr_mimebundle_(), execution_count=1)
        cell = nbformat.v4.new_code_cell(f"figures.{name}()", id=name.replace("_", "-"), outputs=[shown])
        cell.execution_count = 1
        cells.append(cell)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def static_page() -> str:
    """That notebook as nbconvert makes a page of it."""
    page: str = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(notebook())[0]
    return page
