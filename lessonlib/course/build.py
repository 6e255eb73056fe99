"""The build: runs each lesson and writes both editions of its notebook, or says which are stale.

Everything is made in a temporary folder first. A file of `solutions/` or `notebooks/` is replaced at the very
end, in one move, so that a build which fails half-way leaves the old notebooks whole.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config.loader import PyFileConfigLoader

from lessonlib.course.answers import BEGIN
from lessonlib.course.source import MEASURED, ROOT, SourceError, lesson_names, read_lesson

CELL_SECONDS = 240
IMAGES = ("image/png", "image/jpeg", "image/svg+xml")


class BuildError(RuntimeError):
    """A lesson cannot be built; the message names the lesson and the cell."""


def build(names: list[str], folded: bool = True, target: Path = ROOT) -> None:
    """Build the editions of some lessons.

    Args:
        names: lessons; all of them where the list is empty.
        folded: whether learners get the folded solutions.
        target: where `solutions/` and `notebooks/` stand.

    Raises:
        SourceError: a source is wrong.
        BuildError: a cell failed, or nbgrader did.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        todo = names or lesson_names()
        for number, name in enumerate(todo, start=1):
            started = time.perf_counter()
            print(f"[{number}/{len(todo)}] {name}: running …", end="", flush=True)
            make_lesson(name, made, folded)
            print(f" {time.perf_counter() - started:.1f} s")
        for path in _editions(todo, made):
            new = target / path.relative_to(made)
            new.parent.mkdir(parents=True, exist_ok=True)
            beside = new.with_name(f".{new.name}.new")
            shutil.copyfile(path, beside)
            os.replace(beside, new)


def check(names: list[str], target: Path = ROOT, execute: bool = True) -> list[str]:
    """The notebooks, relative to the root, that are missing or not what their sources would give now.

    Pictures are compared by their presence alone: their bytes differ from one matplotlib to the next.

    Args:
        names: lessons; all of them where the list is empty.
        target: where `solutions/` and `notebooks/` stand.
        execute: whether to run the lessons and compare outputs too; nbval also does that.
    """
    todo = names or lesson_names()
    stale = []
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        for name in todo:
            print(f"{name}: checking …", flush=True)
            make_lesson(name, made, execute=execute)
        for path in _editions(todo, made):
            old = target / path.relative_to(made)
            if not old.is_file() or _comparable(old, execute) != _comparable(path, execute):
                stale.append(str(path.relative_to(made)))
    if not names:
        known = {f"{edition}/{name}/{name}.ipynb" for edition in ("solutions", "notebooks") for name in todo}
        present = {str(p.relative_to(target)) for e in ("solutions", "notebooks") for p in (target / e).rglob("*.*")}
        stale += [f"{path} (no lesson makes this)" for path in sorted(present - known) if "checkpoint" not in path]
    return stale


def make_lesson(name: str, made: Path, folded: bool = True, execute: bool = True) -> None:
    """Write `solutions/…` and `notebooks/…` of one lesson below a folder; without a run, with no outputs."""
    nb = read_lesson(name)
    if execute:
        run(nb, name)
        keep_measurements(nb, ROOT / "solutions" / name / f"{name}.ipynb")
    nb.metadata.language_info = nbformat.from_dict({"name": "python"})
    path = made / "solutions" / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(_text(nb), encoding="utf-8")
    release(name, made, folded)


def run(nb: nbformat.NotebookNode, name: str) -> None:
    """Run a notebook in place, in an empty folder, with outputs that do not depend on the machine's clock."""
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            nb,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            record_timing=False,
            extra_arguments=["--Application.log_level=ERROR"],
            resources={"metadata": {"path": empty}},
        )
        try:
            client.execute()
        except CellExecutionError as error:
            raise BuildError(f"{name}: a cell failed\n{error}") from None
    join_streams(nb)
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                raise BuildError(f"{name}: a cell wrote to stderr:\n{output.text}\nin the cell\n{cell.source}")
            if output.output_type == "stream":  # of a progress bar, only its last state
                output.text = re.sub(r"[^\n]*\r", "", output.text)


def join_streams(nb: nbformat.NotebookNode) -> None:
    """Join outputs of one stream that follow each other: the kernel cuts them where its clock happens to tick."""
    for cell in nb.cells:
        joined: list[nbformat.NotebookNode] = []
        for output in cell.get("outputs", []):
            last = joined[-1] if joined else None
            if last and last.output_type == output.output_type == "stream" and last.name == output.name:
                last.text += output.text
            else:
                joined.append(output)
        if "outputs" in cell:
            cell.outputs = joined


def is_measured(cell: nbformat.NotebookNode) -> bool:
    """Whether a cell's outputs are times of the machine that ran it."""
    return MEASURED in cell.metadata.get("tags", [])


def keep_measurements(nb: nbformat.NotebookNode, old: Path) -> None:
    """Take measured outputs from the notebook as it was, if it had the same code: a build changes no byte for them."""
    if not old.is_file():
        return
    before = nbformat.read(old, as_version=4)
    cells = [[cell for cell in each.cells if cell.cell_type == "code"] for each in (nb, before)]
    if [cell.source for cell in cells[0]] != [cell.source for cell in cells[1]]:
        return
    for cell, cell_before in zip(*cells, strict=True):
        if is_measured(cell):
            cell.outputs = cell_before.outputs


def release(name: str, made: Path, folded: bool = True) -> None:
    """Make the learner edition from the solution with nbgrader's own converter and the course's settings."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory

    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    config.CourseDirectory.root = str(made)
    config.CourseDirectory.assignment_id = name
    config.FoldedSolutions.enabled = folded
    config.GenerateAssignment.no_database = True  # these two are its flag --no-db
    config.SaveCells.enabled = False
    converter = GenerateAssignment(coursedir=CourseDirectory(config=config), config=config)
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    converter.log.addHandler(handler)
    try:
        converter.start()
    except Exception as error:
        raise BuildError(f"{name}: nbgrader could not make the learner edition: {error}\n{said.getvalue()}") from error
    finally:
        converter.log.removeHandler(handler)
    path = made / "notebooks" / name / f"{name}.ipynb"
    nb = nbformat.read(path, as_version=4)
    for cell in nb.cells:
        if BEGIN in cell.source:
            raise BuildError(f"{name}: a solution would reach the learners in the cell\n{cell.source}")
    path.write_text(_text(nb), encoding="utf-8")


def _text(nb: nbformat.NotebookNode) -> str:
    nbformat.validate(nb)
    return nbformat.writes(nb) + "\n"


def _editions(names: list[str], root: Path) -> Iterator[Path]:
    for edition in ("solutions", "notebooks"):
        for name in names:
            yield root / edition / name / f"{name}.ipynb"


def _comparable(path: Path, outputs: bool) -> Any:
    """A notebook with its pictures replaced by a word, and without what was measured; or without any output."""
    nb = nbformat.read(path, as_version=4)
    join_streams(nb)
    for cell in nb.cells:
        if cell.cell_type == "code" and (not outputs or is_measured(cell)):
            cell.outputs = []
        if cell.cell_type == "code" and not outputs:
            cell.execution_count = None
        for output in cell.get("outputs", []):
            for kind in IMAGES:
                if kind in output.get("data", {}):
                    output.data[kind] = "a picture"
    return nb


def main(names: list[str], only_check: bool, folded: bool, execute: bool = True) -> int:
    """What `lessonlib build` does; returns the exit status."""
    try:
        if not only_check:
            build(names, folded)
            return 0
        stale = check(names, execute=execute)
    except (SourceError, BuildError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    for path in stale:
        print(f"stale: {path}")
    print("Run `lessonlib build` and commit what it changes." if stale else "All notebooks are current.")
    return 1 if stale else 0
