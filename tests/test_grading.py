"""Plain nbgrader, from the root with the committed settings, marks submissions as it should."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest

from tests.notebooks import ROOT, folded_solutions, grade_id, paste, read

LESSON = "01_kv_cache"


def nbgrader(root: Path, *args: str) -> str:
    """Run one nbgrader command with this environment's tools on the PATH (it starts `alembic` from there)."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *args],
        cwd=root,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def submissions() -> dict[str, nbformat.NotebookNode]:
    released = read("notebooks", LESSON)
    answers = folded_solutions(released)
    half = {"kv_bytes_per_token": answers["kv_bytes_per_token"]}
    half["max_batch"] = "def max_batch(m_kv, C, cfg):\n    return round(m_kv / (C * kv_bytes_per_token(cfg)))"
    broken = {part: "def " + code for part, code in answers.items()}
    duplicated = paste(deepcopy(released), answers)
    at = next(i for i, cell in enumerate(duplicated.cells) if grade_id(cell) == "max_batch")
    copied = deepcopy(duplicated.cells[at])
    copied.id, copied.source = "copied", "def max_batch(m_kv, C, cfg):\n    return 0  # an old try"
    duplicated.cells.insert(at, copied)
    printing = dict(answers)
    printing["kv_bytes_per_token"] = answers["kv_bytes_per_token"].replace(
        "    return", "    import sys, warnings\n    print('try', file=sys.stderr)\n    warnings.warn('hm')\n    return"
    )
    return {
        "perfect": paste(deepcopy(released), answers),
        "half": paste(deepcopy(released), half),
        "untouched": deepcopy(released),
        "broken": paste(deepcopy(released), broken),
        "duplicated": duplicated,
        "printing": paste(deepcopy(released), printing),
    }


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    shutil.copytree(ROOT / "solutions" / LESSON, root / "solutions" / LESSON)
    nbgrader(root, "generate_assignment", LESSON)
    return root


def test_nbgrader_releases_what_the_build_releases(course: Path) -> None:
    made = nbformat.read(course / "notebooks" / LESSON / f"{LESSON}.ipynb", as_version=4)
    assert made == read("notebooks", LESSON)


def test_folded_solutions_can_be_turned_off(course: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    shutil.copytree(ROOT / "solutions" / LESSON, tmp_path / "solutions" / LESSON)
    nbgrader(tmp_path, "generate_assignment", LESSON, "--no-db", "--FoldedSolutions.enabled=False")
    text = (tmp_path / "notebooks" / LESSON / f"{LESSON}.ipynb").read_text()
    assert "Solution of" not in text
    assert "cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv" not in text


def test_marks(course: Path) -> None:
    handed_in = submissions()
    for student, nb in handed_in.items():
        folder = course / ".grading" / "submitted" / student / LESSON
        folder.mkdir(parents=True)
        nbformat.write(nb, folder / f"{LESSON}.ipynb")
    said = nbgrader(course, "autograde", LESSON)
    assert "stands in this notebook more than once" in said
    nbgrader(course, "generate_feedback", LESSON)
    nbgrader(course, "export")
    with (course / ".grading" / "grades.csv").open() as file:
        marks = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert marks == {"perfect": 10, "half": 4, "untouched": 0, "broken": 0, "duplicated": 10, "printing": 10}
    feedback = (course / ".grading" / "feedback" / "half" / LESSON / f"{LESSON}.html").read_text()
    assert "rounds-to-nearest" in feedback


def test_validate_tells_a_learner_what_fails(tmp_path: Path) -> None:
    for name in ("perfect", "half"):
        nbformat.write(submissions()[name], tmp_path / f"{name}.ipynb")
    assert "Success" in nbgrader(tmp_path, "validate", "perfect.ipynb")
    said = nbgrader(tmp_path, "validate", "half.ipynb")
    assert "rounds-to-nearest" in said
