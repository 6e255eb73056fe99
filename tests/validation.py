"""Writes VALIDATION.md: what each check was shown to do, and which cell computes each number of the text.

`python -m tests.validation` runs every check on every answer for the record. A test compares the record with what
the answers and notebooks say now (all but the times), so that it cannot go stale.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from pathlib import Path

from lessonlib import __version__, check
from tests.answers import Answers, all_parts
from tests.notebooks import LESSONS, ROOT
from tests.prose_numbers import audit
from tests.test_checks import reference_of

RECORD = ROOT / "VALIDATION.md"

HEAD = f"""# Validation record of lessonlib {__version__}

Made by `make validation`. Each check was run on the reference answer, on the unfinished starter, on right answers in
other styles, and on wrong answers; `tests/answers/` holds them all. *Named* are wrong answers for which the check must
say which misunderstanding it is; for the others (crashes, odd types, memorised cases) catching them is enough.

| check | reference | starter | right answers accepted | wrong answers caught | of these named | slowest run |
|---|---|---|---|---|---|---|
"""


def starter(*_args: object) -> None:
    """What a learner's cell holds before anything is written."""
    raise NotImplementedError


def passes(part: str, answer: object) -> tuple[bool, str | None, float]:
    """Whether a check accepts an answer, the mistake that it names, and the seconds that it took."""
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(check, part)(answer, seed=1)
    except check.CheckFailed as failure:
        return False, failure.mistake, time.perf_counter() - started
    return True, None, time.perf_counter() - started


def row(part: str, answers: Answers, slowest: str) -> str:
    """A line of the table; the counts are those of the answers, which `measure` and the tests hold."""
    right, wrong = len(answers.right), len(answers.wrong)
    named = sum(w.mistake is not None for w in answers.wrong.values())
    return (
        f"| `{part}` | all points | none | {right} of {right} | {wrong} of {wrong} | {named} of {named} | {slowest} |\n"
    )


def measure(part: str, answers: Answers) -> str:
    """Run one check on all its answers; the slowest run that was not ended by the time limit.

    Raises:
        RuntimeError: the check does not do what the record would say.
    """
    times = []
    for answer in (reference_of(part), *answers.right):
        ok, mistake, seconds = passes(part, answer)
        times.append(seconds)
        if not ok:
            raise RuntimeError(f"check.{part} refuses a right answer: {answer}, {mistake}")
    if passes(part, starter)[:2] != (False, "not-written"):
        raise RuntimeError(f"check.{part} does not know the starter")
    for name, wrong in answers.wrong.items():
        ok, mistake, seconds = passes(part, wrong.answer)
        if mistake != "never-returns":
            times.append(seconds)
        if ok or (wrong.mistake is not None and mistake != wrong.mistake):
            raise RuntimeError(f"check.{part} on {name!r}: passed {ok}, named {mistake}, expected {wrong.mistake}")
    return f"{max(times):.2f} s"


def numbers(lesson: str) -> str:
    """The numbers of one lesson's prose and the cells that compute them."""
    held, loose = audit(lesson)
    if loose:
        raise RuntimeError(f"{lesson}: no cell computes {loose}")
    by_source: dict[str, list[str]] = {}
    for number in held:
        by_source.setdefault(number.source, []).append(number.number)
    lines = [f"\n### {lesson}: {len(held)} numbers\n\n| computed by cell | numbers |\n|---|---|\n"]
    lines += [f"| {source} | {' · '.join(found)} |\n" for source, found in by_source.items()]
    return "".join(lines)


def record(measured: bool) -> str:
    """The text of the record, with times only where they are measured."""
    text = HEAD
    for part, answers in all_parts().items():
        text += row(part, answers, measure(part, answers) if measured else "-")
    text += (
        "\n## Numbers in the text\n\nEvery number of the prose above twenty, and the id of the cell whose output shows "
        "it. *given*: an input that a code cell states. *published*: a figure of a paper, named in "
        "`tests/prose_numbers.py`.\n"
    )
    return text + "".join(numbers(lesson) for lesson in LESSONS)


def without_times(text: str) -> str:
    """A record whose last column is blank."""
    return re.sub(r"\| [\d.]+ s \|$", "| - |", text, flags=re.MULTILINE)


def main() -> None:
    """Write the record."""
    Path(RECORD).write_text(record(measured=True), encoding="utf-8")
    print(f"wrote {RECORD.name}")


if __name__ == "__main__":
    main()
