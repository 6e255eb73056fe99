"""Every check accepts every right answer, and catches and names every wrong one."""

from __future__ import annotations

import inspect
import time

import pytest

from lessonlib import check, hint, reference
from lessonlib.check import CheckFailed, NotWritten
from lessonlib.check.harness import TookTooLong, _limited, time_limit
from lessonlib.reference import capstone
from tests.answers import Answers, all_parts

PARTS = all_parts()
RIGHT = [(part, i) for part, answers in PARTS.items() for i in range(len(answers.right))]
WRONG = [(part, name) for part, answers in PARTS.items() for name in answers.wrong]


def run(part: str, answer: object, seed: int = 0) -> None:
    assert getattr(check, part)(answer, seed=seed) is None


def reference_of(part: str) -> object:
    """The reference answer of a check."""
    name = getattr(check, part).answer_name
    return getattr(reference, name, None) or getattr(capstone, name)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("seed", [0, 1, 20261201])
def test_reference_passes(part: str, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    run(part, reference_of(part), seed)
    out, err = capsys.readouterr()
    assert out.startswith("✓ ")
    assert out.count("\n") == 1
    assert err == ""


@pytest.mark.parametrize(("part", "i"), RIGHT)
def test_right_answers_pass(part: str, i: int, capfd: pytest.CaptureFixture[str]) -> None:
    run(part, PARTS[part].right[i], seed=i)
    out, err = capfd.readouterr()
    assert out.count("\n") == 1, "what the answer prints must not reach the cell"
    assert err == ""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("part", "name"), WRONG)
def test_wrong_answers_are_caught_and_named(
    part: str, name: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = PARTS[part].wrong[name]
    if seed and wrong.mistake == "never-returns":
        return  # its time limit is long, and no case plays a part in it
    with pytest.raises(CheckFailed) as caught:
        run(part, wrong.answer, seed)
    assert isinstance(caught.value, NotWritten) == (wrong.mistake == "not-written")
    if wrong.mistake is not None:
        assert caught.value.mistake == wrong.mistake, str(caught.value)
    shown = caught.value._render_traceback_()
    assert len("\n".join(shown).splitlines()) < 25
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("part", PARTS)
def test_starter_is_told_apart_from_wrong(part: str) -> None:
    def starter(*args: object) -> None:
        raise NotImplementedError

    with pytest.raises(NotWritten, match="not written yet"):
        run(part, starter)


def test_a_late_ring_does_not_escape() -> None:
    """The alarm rings while no answer runs, as it can during unwinding on a busy machine."""
    with time_limit(0.02):
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
    with pytest.raises(TookTooLong), time_limit(0.02):
        _limited(lambda: time.sleep(5))


def test_unwritten_method_is_named() -> None:
    class HalfWritten(reference.BlockAllocator):
        def append(self, seq_id: object) -> None:
            raise NotImplementedError

    with pytest.raises(NotWritten, match=r"^append: not written yet"):
        run("block_allocator", HalfWritten)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("answer", [None, 131072, "text", float("nan")])
def test_what_is_no_function_is_refused(part: str, answer: object) -> None:
    with pytest.raises(CheckFailed, match="cannot be called"):
        run(part, answer)


@pytest.mark.parametrize("part", PARTS)
def test_enough_answers(part: str) -> None:
    answers: Answers = PARTS[part]
    texts = {inspect.getsource(a) if inspect.isfunction(a) else repr(a) for a in answers.right}
    assert len(texts) >= answers.least_right


def test_every_check_has_hints_and_answers() -> None:
    public = {name for name in check.__all__ if name[0].islower()}
    assert public == set(PARTS) == set(hint.HINTS)
