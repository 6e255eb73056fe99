"""The build: deterministic, whole or not at all, and honest about what is stale."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest

from lessonlib.course import build, source
from lessonlib.course.answers import exercise_cell, folded_code
from lessonlib.course.source import SourceError, read_lesson

TINY = """\
# Tiny

Some prose.


```python setup=true
from lessonlib import ModelConfig, check
```

```python exercise="kv_bytes_per_token"
from lessonlib.reference import kv_bytes_per_token
```

```python check="kv_bytes_per_token" points=4
check.kv_bytes_per_token(kv_bytes_per_token)
```
"""
NAME = "01_tiny"
OUTPUTS = (f"solutions/{NAME}/{NAME}.ipynb", f"notebooks/{NAME}/{NAME}.ipynb")


@pytest.fixture
def lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lessons"
    folder.mkdir()
    (folder / f"{NAME}.md").write_text(TINY)
    monkeypatch.setattr(source, "LESSONS", folder)
    return folder


def test_build_is_deterministic_and_check_sees_what_is_stale(lessons: Path, tmp_path: Path) -> None:
    build.build([], target=tmp_path)
    first = [(tmp_path / path).read_bytes() for path in OUTPUTS]
    build.build([NAME], target=tmp_path)
    assert [(tmp_path / path).read_bytes() for path in OUTPUTS] == first
    assert build.check([], target=tmp_path) == build.check([], target=tmp_path, execute=False) == []

    (lessons / f"{NAME}.md").write_text(TINY.replace("Some prose.", "Other prose."))
    for execute in (True, False):
        assert build.check([], target=tmp_path, execute=execute) == list(OUTPUTS)
    (tmp_path / OUTPUTS[1]).unlink()
    shutil.copy(lessons / f"{NAME}.md", tmp_path / "notebooks" / NAME)
    assert build.check([], target=tmp_path) == [*OUTPUTS, f"notebooks/{NAME}/{NAME}.md (no lesson makes this)"]


def test_failed_build_leaves_the_old_notebooks_whole(lessons: Path, tmp_path: Path) -> None:
    build.build([], target=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.ipynb")}
    (lessons / "02_bad.md").write_text("```python\n1 / 0\n```\n")
    (lessons / f"{NAME}.md").write_text(TINY.replace("Some prose.", "Other prose."))
    with pytest.raises(build.BuildError, match=r"(?s)02_bad.*ZeroDivisionError"):
        build.build([], target=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.ipynb")} == before


def test_cells_must_not_write_to_stderr(lessons: Path, tmp_path: Path) -> None:
    (lessons / f"{NAME}.md").write_text('```python\nimport warnings\nwarnings.warn("look")\n```\n')
    with pytest.raises(build.BuildError, match="stderr"):
        build.build([], target=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('```python exercise="x"\nfrom lessonlib.reference import no_such\n```\n', "no 'no_such'"),
        ('```python exercise="x"\nprint(1)\n```\n', "holds one line"),
        ('```python check="x"\nprint(1)\n```\n', "points"),
        ("```python\n" + "x = 1\n" * 40 + "```\n", "a cell of 40 lines"),
    ],
)
def test_bad_sources_are_named(lessons: Path, text: str, message: str) -> None:
    (lessons / f"{NAME}.md").write_text(text)
    with pytest.raises(SourceError, match=message):
        read_lesson(NAME)


def test_unknown_lesson_is_named(lessons: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["07_nothing"], only_check=False, folded=True) == 1
    assert "no lesson '07_nothing'; there are 01_tiny" in capsys.readouterr().err


def test_graded_build_has_no_folded_solutions(lessons: Path, tmp_path: Path) -> None:
    build.build([], folded=False, target=tmp_path)
    nb = nbformat.read(tmp_path / OUTPUTS[1], as_version=4)
    assert not any("<details>" in cell.source for cell in nb.cells)
    assert any("raise NotImplementedError" in cell.source for cell in nb.cells)


def test_ids_survive_a_new_cell(lessons: Path) -> None:
    before = [cell.id for cell in read_lesson(NAME).cells]
    (lessons / f"{NAME}.md").write_text(TINY.replace("Some prose.", "Some prose.\n\n\nA new cell."))
    after = [cell.id for cell in read_lesson(NAME).cells]
    assert len(after) == len(before) + 1
    assert len(set(before) & set(after)) == len(before)


MODULE = '''
import math

_LIMIT = 3


class Box:
    """A box.

    Args:
        n: size.
    """

    kind = "box"

    def __init__(self, n):
        """Make it."""
        # why
        self.n = n

    def _grow(self):
        self.n += _double(1)

    def size(self):
        """Its size."""
        self._grow()
        return self.n


def _double(x):
    return min(2 * x, _LIMIT)
'''


def test_classes_and_private_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boxes_for_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    cell = exercise_cell("boxes_for_test", ["Box"])
    for text in (cell, folded_code(cell)):
        names: dict = {}
        exec(text, names)
        assert names["Box"](1).size() == 3

    lines, cleared, inside = cell.splitlines(), [], False
    for line in lines:
        inside |= "BEGIN SOLUTION" in line
        if not inside:
            cleared.append(line)
        if "END SOLUTION" in line:
            cleared.append(line[: len(line) - len(line.lstrip())] + "raise NotImplementedError")
            inside = False
    stub = "\n".join(cleared)
    assert "_grow" not in stub
    assert "_double" not in stub
    assert "# why" not in stub
    assert '"""Its size."""' in stub
    assert 'kind = "box"' in stub
    starter: dict = {}
    exec(stub, starter)
    with pytest.raises(NotImplementedError):
        starter["Box"](1)
