"""The learner edition as it is released, untouched, solved and answered wrongly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lessonlib.course.source import LESSONS as SOURCES
from tests.notebooks import LESSONS, errors, folded_solutions, grade_id, paste, read, run

QUERY_HEADS = """
def kv_bytes_per_token(cfg):
    return 2 * cfg.n_layers * cfg.n_heads * cfg.head_dim * cfg.bytes_per_kv
"""


@pytest.mark.parametrize("lesson", LESSONS)
def test_untouched_notebook_stops_at_each_check(lesson: str, tmp_path: Path) -> None:
    nb = run(read("notebooks", lesson), tmp_path)
    failed = errors(nb)
    checks = [cell for cell in nb.cells if grade_id(cell).startswith("check-")]
    assert checks
    assert all(any(cell is failing for failing, _ in failed) for cell in checks), "a check passed with no answer"
    for cell, output in failed:
        assert output.output_type == "error", output
        if grade_id(cell).startswith("check-"):
            assert output.ename in ("NotWritten", "CheckFailed"), output
            assert len(output.traceback) == 1
        else:
            assert output.ename == "NotImplementedError", f"{cell.source}\n{output.ename}: {output.evalue}"
        assert "not written yet" in output.evalue


@pytest.mark.parametrize("lesson", LESSONS)
def test_folded_solutions_pasted_in_run_clean(lesson: str, tmp_path: Path) -> None:
    nb = read("notebooks", lesson)
    answers = folded_solutions(nb)
    parts = {grade_id(cell) for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("solution")}
    assert set(answers) == parts
    nb = run(paste(nb, answers), tmp_path)
    assert [(cell.source, output) for cell, output in errors(nb)] == []


def test_wrong_answer_gets_its_message_and_no_traceback(tmp_path: Path) -> None:
    nb = run(paste(read("notebooks", "01_kv_cache"), {"kv_bytes_per_token": QUERY_HEADS}), tmp_path)
    (output,) = [output for cell, output in errors(nb) if grade_id(cell) == "check-kv_bytes_per_token"]
    shown = "\n".join(output.traceback)
    assert 'kv_bytes_per_token(MODELS["Llama-3-70B"])' in shown
    assert "2621440" in shown
    assert "query-heads" in shown
    assert "File " not in shown
    assert len(shown.splitlines()) <= 6


@pytest.mark.parametrize("lesson", LESSONS)
def test_release_leaks_no_answer(lesson: str) -> None:
    """No line of an answer stands in the learner's notebook outside the folded solutions."""
    solution, release = read("solutions", lesson), read("notebooks", lesson)
    for cell in solution.cells:
        for answer in re.findall(r"### BEGIN SOLUTION\n(.*?)\n\s*### END SOLUTION", cell.source, re.DOTALL):
            lines = [line.strip() for line in answer.splitlines() if len(line.strip()) > 30]
            for shown in release.cells:
                if not shown.id.startswith("solution-"):
                    assert not [line for line in lines if line in shown.source], shown.source
    assert not any(cell.get("outputs") for cell in release.cells)


@pytest.mark.parametrize("lesson", LESSONS)
def test_cells_are_short_and_front_end_neutral(lesson: str) -> None:
    nb = read("solutions", lesson)
    assert len({cell.id for cell in nb.cells}) == len(nb.cells)
    for cell in nb.cells:
        assert not cell.get("attachments")
        if cell.cell_type == "code":
            graded = "nbgrader" in cell.metadata
            assert graded or len(cell.source.splitlines()) <= 25, cell.source
            assert not cell.source.rstrip().endswith(";"), cell.source
        elif "<details>" in cell.source:
            for block in re.findall(r"<details>(.*?)</details>", cell.source, re.DOTALL):
                assert "$" not in block, "VS Code shows no formulas in a folded block"
                assert "</summary>\n\n" in block


def test_every_source_has_both_editions() -> None:
    assert sorted(path.stem for path in SOURCES.glob("*.md")) == LESSONS


def test_points_add_up() -> None:
    points = {}
    for lesson in LESSONS:
        cells = [c.metadata.nbgrader for c in read("notebooks", lesson).cells if "nbgrader" in c.metadata]
        points[lesson] = sum(role.get("points", 0) for role in cells)
    expected = {"01_kv_cache": 10, "02_decode_roofline": 10, "03_paged_memory": 16, "04_speculative_sampling": 12}
    expected |= {"05_batching": 12, "06_capstone": 40}
    assert sum(expected.values()) == 100
    assert points == {lesson: expected[lesson] for lesson in LESSONS}
