"""Running notebooks in tests: the released edition, with answers put in as a learner would."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted(path.stem for path in (ROOT / "notebooks").glob("*/*.ipynb"))


def read(edition: str, lesson: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / edition / lesson / f"{lesson}.ipynb", as_version=4)


def grade_id(cell: nbformat.NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


def folded_solutions(nb: nbformat.NotebookNode) -> dict[str, str]:
    """Part -> the code in its folded solution."""
    found = {}
    for cell in nb.cells:
        if cell.cell_type == "markdown" and cell.id.startswith("solution-"):
            code = re.search(r"```python\n(.*?)\n```", cell.source, re.DOTALL)
            assert code, cell.source
            found[cell.id.removeprefix("solution-")] = code[1]
    return found


def paste(nb: nbformat.NotebookNode, answers: dict[str, str]) -> nbformat.NotebookNode:
    """Type answers into the exercise cells."""
    for part, code in answers.items():
        (cell,) = [c for c in nb.cells if c.cell_type == "code" and grade_id(c) == part]
        cell.source = code
    return nb


def run(nb: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run every cell in an empty folder; errors stay in the outputs."""
    NotebookClient(
        nb,
        timeout=300,
        kernel_name="python3",
        allow_errors=True,
        extra_arguments=["--Application.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return nb


def errors(nb: nbformat.NotebookNode) -> list[tuple[nbformat.NotebookNode, nbformat.NotebookNode]]:
    """(cell, output) of every error and of everything on stderr."""
    return [
        (cell, output)
        for cell in nb.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
