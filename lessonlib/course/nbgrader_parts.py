"""Preprocessors that the course adds to nbgrader's own, named in `nbgrader_config.py`."""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool

from lessonlib.course.answers import END, folded_code

FOLDED = """\
<details>
<summary>Solution of {part}: try the hints first</summary>

```python
{code}
```

</details>"""


class FoldedSolutions(NbGraderPreprocessor):
    """Puts the answer of each exercise, folded, after its check cell. Goes before `ClearSolutions`."""

    enabled = Bool(True, help="Whether learners get the folded solutions; turn off for a graded class.").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        answers = {
            _grade_id(cell): folded_code(cell.source)
            for cell in nb.cells
            if cell.cell_type == "code" and END in cell.source and _grade_id(cell)
        }
        cells = []
        for cell in nb.cells:
            cells.append(cell)
            part = _grade_id(cell).removeprefix("check-")
            if part != _grade_id(cell) and part in answers:
                folded = new_markdown_cell(FOLDED.format(part=part, code=answers[part]))
                folded.id = f"solution-{part}"
                cells.append(folded)
        nb.cells = cells
        return nb, resources


class DropDuplicates(NbGraderPreprocessor):
    """Makes plain cells of the copies of a graded cell, and keeps the last one. Goes before `DeduplicateIds`.

    Front ends copy a cell with its metadata; what nbgrader makes of that is an error about metadata formats.
    """

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        seen: set[str] = set()
        for cell in reversed(nb.cells):
            grade_id = _grade_id(cell)
            if not grade_id:
                continue
            if grade_id in seen:
                self.log.warning(
                    "The cell %r stands in this notebook more than once. The last one counts; the copies before it "
                    "are treated as plain cells.",
                    grade_id,
                )
                del cell.metadata["nbgrader"]
            seen.add(grade_id)
        return nb, resources


def _grade_id(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")
