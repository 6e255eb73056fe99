"""Lesson sources: one jupytext Markdown file per lesson, in which a cell's role stands in its fence.

- ```` ```python setup=true ```` the imports; the install step is put before it.
- ```` ```python exercise="part" ```` with `from lessonlib.reference import name`: the reference answer goes here.
- ```` ```python check="part" points=4 ```` a check cell, which carries points.

- ```` ```python measured=true ```` shows times of this machine: outputs are kept while no code changes, never compared.

All other cells are plain. Cell ids follow from the text of the source, so that a build changes no byte without need.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from lessonlib.course.answers import exercise_cell

ROOT = Path(__file__).resolve().parents[2]
LESSONS = Path(__file__).parent / "lessons"
ROLES = ("setup", "exercise", "check", "points", "measured")
MEASURED = "nbval-ignore-output"  # the tag of a measured cell, which nbval knows too

SETUP = """\
#@title Set-up: run this cell first {{ display-mode: "form" }}
try:
    import lessonlib
except ModuleNotFoundError:
    %pip install --quiet --no-deps "lessonlib @ git+{repository}@v{version}"
    import lessonlib
lessonlib.require("{version}")"""

BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name}/{name}.ipynb)"
)


class SourceError(ValueError):
    """A lesson source cannot be used; the message says where and what to change."""


@dataclass(frozen=True)
class Project:
    """What `pyproject.toml` says of the project, the one place where its version and address stand."""

    version: str
    repository: str

    @classmethod
    def load(cls) -> Project:
        import tomllib

        table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return cls(table["version"], table["urls"]["Repository"])


def lesson_names() -> list[str]:
    """All lessons, in the order of the course."""
    return sorted(path.stem for path in LESSONS.glob("[0-9][0-9]_*.md"))


def read_lesson(name: str) -> nbformat.NotebookNode:
    """The notebook of a lesson, with answers and roles in place, not yet run.

    Args:
        name: such as "01_kv_cache".

    Raises:
        SourceError: there is no such lesson, or a cell's role is not understood.
    """
    path = LESSONS / f"{name}.md"
    if not path.is_file():
        raise SourceError(f"there is no lesson {name!r}; there are {', '.join(lesson_names())}")
    nb = jupytext.read(path)
    project = Project.load()
    badge = BADGE.format(name=name, repository=project.repository.removeprefix("https://github.com/"))
    cells = [new_markdown_cell(badge)]
    for cell in nb.cells:
        cell.source = cell.source.strip("\n")
        try:
            cells += _expand(cell, project)
        except (ValueError, KeyError) as error:
            raise SourceError(f"{path.name}: {error}\nin the cell\n{cell.source}") from error
    _set_ids(cells)
    nb.cells = cells
    nb.metadata = _metadata(nb.metadata)
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def _expand(cell: nbformat.NotebookNode, project: Project) -> list[nbformat.NotebookNode]:
    """The cell or cells that one source cell stands for."""
    role = {key: cell.metadata.pop(key) for key in ROLES if key in cell.metadata}
    if role.get("setup"):
        install = new_code_cell(SETUP.format(version=project.version, repository=project.repository))
        return [install, cell]
    if "exercise" in role:
        module, names = _imported(cell.source)
        cell.source = exercise_cell(module, names)
        cell.metadata["nbgrader"] = _nbgrader(role["exercise"], solution=True)
    elif "check" in role:
        cell.metadata["nbgrader"] = _nbgrader(f"check-{role['check']}", points=role["points"])
    elif role.get("measured"):
        cell.metadata["tags"] = [MEASURED]
    elif cell.cell_type == "code" and cell.source.count("\n") >= 30:
        raise ValueError(f"a cell of {cell.source.count(chr(10)) + 1} lines: split it, or move code to lessonlib")
    return [cell]


def _imported(source: str) -> tuple[str, list[str]]:
    """Module and names of the one import statement that an exercise cell holds."""
    statements = ast.parse(source).body
    if len(statements) != 1 or not isinstance(statements[0], ast.ImportFrom) or not statements[0].module:
        raise ValueError("an exercise cell holds one line: from lessonlib.reference import …")
    return statements[0].module, [alias.name for alias in statements[0].names]


def _nbgrader(grade_id: str, solution: bool = False, points: int | None = None) -> dict[str, Any]:
    role: dict[str, Any] = {
        "grade": points is not None,
        "grade_id": grade_id,
        "locked": not solution,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    if points is not None:
        role["points"] = points
    return role


def _set_ids(cells: list[nbformat.NotebookNode]) -> None:
    """Ids from roles, or else from the text; a repeated text gets a number."""
    seen: dict[str, int] = {}
    for cell in cells:
        role = cell.metadata.get("nbgrader")
        text_id = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        cell_id = re.sub(r"[^\w-]", "-", role["grade_id"]) if role else text_id
        seen[cell_id] = seen.get(cell_id, 0) + 1
        cell.id = cell_id if seen[cell_id] == 1 else f"{cell_id}-{seen[cell_id]}"


def _metadata(header: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Notebook metadata that does not depend on the machine; `accelerator` and `colab` come from the source."""
    kept = {key: header[key] for key in ("accelerator", "colab") if key in header}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.from_dict({**kept, "kernelspec": kernel, "language_info": {"name": "python"}})
