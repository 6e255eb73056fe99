"""nbgrader's settings for this course: one assignment per lesson, state under `.grading/`."""

from pathlib import Path

from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, DeduplicateIds

from lessonlib.course.nbgrader_parts import DropDuplicates, FoldedSolutions

c = get_config()  # noqa: F821 - traitlets gives it

root = Path(__file__).parent.resolve()
(root / ".grading").mkdir(exist_ok=True)

c.CourseDirectory.course_id = "llm-serving"
c.CourseDirectory.root = str(root)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
c.CourseDirectory.submitted_directory = ".grading/submitted"
c.CourseDirectory.autograded_directory = ".grading/autograded"
c.CourseDirectory.feedback_directory = ".grading/feedback"
c.CourseDirectory.db_url = f"sqlite:///{root}/.grading/gradebook.db"
c.CsvExportPlugin.to = ".grading/grades.csv"
c.Execute.timeout = 120


def before(where, what, preprocessors):
    """nbgrader's own list of preprocessors with one more, before a certain one."""
    steps = list(preprocessors.default())
    steps.insert(steps.index(where), what)
    return steps


c.GenerateAssignment.preprocessors = before(ClearSolutions, FoldedSolutions, GenerateAssignment.preprocessors)
c.Autograde.sanitize_preprocessors = before(DeduplicateIds, DropDuplicates, Autograde.sanitize_preprocessors)
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError('not written yet')"}
