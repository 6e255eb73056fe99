"""What every check shares: calling an answer safely, comparing, and saying what was misunderstood.

A check sees an answer only through `Answer`. It calls it with plain data, with its output and warnings
kept away, under a time limit, and with every way of failing turned into a message for the learner.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import linecache
import logging
import math
import numbers
import os
import random
import reprlib
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from lessonlib.gpus import GPUS, Gpu
from lessonlib.models import MODELS, ModelConfig

REL_TOL = 1e-9


class CheckFailed(AssertionError):  # noqa: N818 - the course's fixed name
    """An answer is wrong, broken or unfinished.

    Attributes:
        mistake: a short slug of the recognised mistake, or None.
    """

    def __init__(self, message: str, mistake: str | None = None) -> None:
        super().__init__(message)
        self.mistake = mistake

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the learner sees the message, not the library's frames."""
        return [f"CheckFailed: {self}"]


class NotWritten(CheckFailed):
    """The exercise still holds its starter code."""


class TookTooLong(BaseException):
    """Raised inside an answer at its time limit. A BaseException, so that `except Exception` lets it through."""


@dataclass(frozen=True)
class Mistake:
    """A known misunderstanding, as the wrong function that it leads to.

    Args:
        slug: short name for reports.
        why: one sentence on why it is wrong.
        wrong: called like the answer, gives what a learner with this mistake would return.
    """

    slug: str
    why: str
    wrong: Callable[..., Any]


def fail(call: str, came: str, expected: str, mistake: tuple[str, str] | None = None) -> NoReturn:
    """Raise `CheckFailed` in the one form that all messages have.

    Args:
        call: the call that was made, as the learner would write it; may have several lines.
        came: what came back.
        expected: what was expected, or the property that broke.
        mistake: slug and sentence of the recognised mistake.
    """
    lines = [call, f"  gave      {came}", f"  expected  {expected}"]
    if mistake:
        lines += ["", f"Likely mistake ({mistake[0]}): {mistake[1]}"]
    raise CheckFailed("\n".join(lines), mistake[0] if mistake else None)


# --- how values are shown -------------------------------------------------------------------------------

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxdict = 12
_short.maxstring = _short.maxother = 120


def show(value: object) -> str:
    """Python text of a value, short enough for a message; catalogue entries by their names."""
    if isinstance(value, ModelConfig):
        return _show_config(value)
    if isinstance(value, Gpu):
        return f'GPUS["{value.name}"]' if GPUS.get(value.name) == value else repr(value)
    if isinstance(value, np.random.Generator):
        return "rng"
    if isinstance(value, np.ndarray):
        return np.array2string(value, threshold=24, edgeitems=3, separator=", ", precision=6)
    if isinstance(value, np.generic):
        return f"{value!r}"
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a whole number of {value.bit_length()} bits"
    return _short.repr(value)


def describe(error: BaseException) -> str:
    """Class and text of an exception, short enough for a message."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its __str__ raises
        text = ""
    text = text if len(text) <= 200 else text[:199] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _show_config(cfg: ModelConfig) -> str:
    """A catalogue model by name; any other as the catalogue model with the fields that differ."""
    base = MODELS.get(cfg.name)
    if base == cfg:
        return f'MODELS["{cfg.name}"]'
    if base is None:
        keys = ("n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_size", "n_params")
        formats = ("bytes_per_weight", "bytes_per_kv")
        return f"ModelConfig({', '.join(f'{key}={getattr(cfg, key)!r}' for key in (*keys, *formats))}, …)"
    changed = [
        f"{f.name}={getattr(cfg, f.name)!r}" for f in fields(cfg) if getattr(cfg, f.name) != getattr(base, f.name)
    ]
    return f'replace(MODELS["{cfg.name}"], {", ".join(changed)})'


# --- calling an answer ----------------------------------------------------------------------------------


@contextlib.contextmanager
def kept_quiet() -> Iterator[None]:
    """Keep what an answer prints, warns and logs away from the cell: nbgrader marks stderr as a failure."""
    nowhere = io.StringIO()
    disabled = logging.root.manager.disable
    with (
        _descriptors_to_nowhere(),
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        logging.disable(sys.maxsize)
        try:
            yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def _descriptors_to_nowhere() -> Iterator[None]:
    """Send descriptors 1 and 2 to the null device: compiled code, subprocesses and `sys.__stderr__` write there."""
    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]

    def flush() -> None:
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):  # a closed one
                stream.flush()

    flush()
    saved: list[tuple[int, int]] = []
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):  # not open, as in a process without a terminal
                saved.append((os.dup(descriptor), descriptor))
                os.dup2(nowhere, descriptor)
        os.close(nowhere)
        yield
    finally:
        flush()
        for copied, descriptor in saved:
            os.dup2(copied, descriptor)
            os.close(copied)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in what `_limited` calls after so many seconds, and again until that ends.

    A late ring, while the stack unwinds on a busy machine, must not escape: outside `_limited` nothing is raised. Only
    the main thread of a system with SIGALRM can be interrupted; elsewhere there is no limit.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return
    traced, n_rings = sys.gettrace(), 0

    def stop(_frame: FrameType, event: str, _value: object) -> Any:
        if event == "line":
            raise TookTooLong
        return stop

    def ring(_signum: int, frame: FrameType | None) -> None:
        nonlocal n_rings
        if not _within_limited(frame):
            return
        n_rings += 1
        if n_rings > 1:  # a bare `except:` swallowed it: from now on every line raises, those of handlers too
            sys.settrace(lambda *_: None)
            while frame is not None and frame.f_code.co_filename != __file__:
                frame.f_trace = stop
                frame = frame.f_back
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if n_rings > 1:
            sys.settrace(traced)


def _limited(action: Callable[[], Any]) -> Any:
    """Do what `time_limit` may interrupt. A frame of this function on the stack says that it still runs."""
    return action()


def _within_limited(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _limited.__code__:
        frame = frame.f_back
    return frame is not None


class Answer:
    """A learner's function (or class), called the way a careful teacher would.

    Args:
        function: what the learner wrote.
        name: its name in the course.
        seconds: time limit of each call; all calls together may take four times as long.
        check: the name of its check, where that is another one.
    """

    def __init__(self, function: Any, name: str, seconds: float = 5.0, check: str | None = None) -> None:
        if not callable(function):
            kind, check = "class" if name[0].isupper() else "function", check or name
            raise CheckFailed(
                f"check.{check}({show(function)})\n  gave      {type(function).__name__}, which cannot be called\n"
                f"  expected  the {kind} itself, as in check.{check}({name})"
            )
        self.function = function
        self.name = name
        self.seconds = seconds
        self.left = 4 * seconds

    def text(self, args: Sequence[object]) -> str:
        """The call as the learner would write it."""
        return f"{self.name}({', '.join(show(a) for a in args)})"

    def __call__(self, *args: Any) -> Any:
        """Call with copies of the arguments; fail where it raises, hangs, or changes what it was given."""
        given = tuple(a if isinstance(a, np.random.Generator) else copy.deepcopy(a) for a in args)
        global_state = _global_random_state()
        result = self.run(lambda: self.function(*given), lambda: self.text(args))
        self.expect_unchanged(args, given, self.text(args))
        if _global_random_state() != global_state:
            fail(
                self.text(args),
                "draws from the global random state (np.random.… or random.…)",
                "every draw from the generator that is passed in, or none",
                (
                    "global-random-state",
                    "Results must follow from the arguments alone, so that a run can be repeated.",
                ),
            )
        return result

    @staticmethod
    def expect_unchanged(args: Sequence[object], given: Sequence[object], text: str) -> None:
        """Fail if a call changed what it was given, a copy of args; generators may change."""
        for before, after in zip(args, given, strict=True):
            if not isinstance(before, np.random.Generator) and not same(before, after):
                fail(
                    text,
                    f"its argument changed from {show(before)} to {show(after)}",
                    "arguments left as they were given",
                    ("changes-its-input", "The caller still needs its data: work on a copy."),
                )

    def run(self, action: Callable[[], Any], text: Callable[[], str]) -> Any:
        """Do something with the answer's code, turning every way of failing into a message.

        Args:
            action: what to do.
            text: gives the text of the call, for the message.
        """
        limit, start = max(0.05, min(self.seconds, self.left)), time.monotonic()
        try:
            with kept_quiet(), time_limit(limit):
                return _limited(action)
        except (CheckFailed, KeyboardInterrupt):
            raise
        except TookTooLong:
            if limit == self.seconds:
                came, why = f"nothing within {limit:g} s", "It hangs: look for a loop that cannot end."
                fail(text(), came, "an answer at once", ("never-returns", why))
            came = f"nothing yet when all calls of this check had taken {4 * self.seconds:g} s"
            fail(text(), came, "answers in milliseconds", ("too-slow", "Look for a loop that a formula can replace."))
        except BaseException as error:
            if type(error) is NotImplementedError:
                raise NotWritten(f"{self.name}: not written yet.", "not-written") from None
            fail(text(), describe(error) + where_raised(error), "a result, not an error")
        finally:
            self.left -= time.monotonic() - start

    def number(self, *args: Any) -> float:
        """Call and insist on one finite real number: int, float, numpy scalar or 0-d array."""
        return self.as_number(self(*args), self.text(args))

    def as_number(self, value: Any, text: str, what: str = "a number") -> float:
        """Insist that a result is one finite real number, and return it as int or float."""
        if value is None:
            fail(text, "None", what, ("returns-nothing", "The function ends without `return`."))
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | Decimal):
            fail(text, f"{show(value)} (type {type(value).__name__})", what)
        value = value.item() if isinstance(value, np.generic) else value
        try:
            finite = math.isfinite(value)
        except Exception:  # too large for a float
            finite = False
        if not finite:
            fail(text, show(value), what + ", finite")
        return value

    def repeat(self, n: int, *args: Any, seed: int) -> list[Any]:
        """n results of `answer(*args, rng)` with one generator, the helper for statistical checks.

        An answer that lives in another process has a method `repeat(n, args, seed)` of its own, which does the
        same there and replies in one message.
        """
        text = f"{n} times {self.text((*args, np.random.default_rng(seed)))}"
        remote = getattr(self.function, "repeat", None)
        if remote is not None:
            return self.run(lambda: remote(n, args, seed), lambda: text)
        given, rng = copy.deepcopy(args), np.random.default_rng(seed)
        results = self.run(lambda: [self.function(*given, rng) for _ in range(n)], lambda: text)
        self.expect_unchanged(args, given, text)
        return results


_MISSING = object()


class FieldOf(Answer):
    """One field of the record that an answer returns, seen as an answer of its own.

    The answer is called once per case, however many fields are looked at.

    Args:
        answer: the answer that returns records.
        field: the name of the field.
        record: what a record is called in messages.
        seen: results so far, shared between the fields of one check.
    """

    def __init__(self, answer: Answer, field: str, record: str, seen: dict[Any, Any]) -> None:
        super().__init__(answer.function, answer.name, answer.seconds)
        self.answer, self.field, self.record, self.seen = answer, field, record, seen

    def text(self, args: Sequence[object]) -> str:
        return f"{self.answer.text(args)}.{self.field}"

    def __call__(self, *args: Any) -> Any:
        if args not in self.seen:
            self.seen[args] = self.answer(*args)
        result = self.seen[args]
        if result is None:
            self.as_number(None, self.answer.text(args), f"a {self.record}")
        value = self.answer.run(lambda: getattr(result, self.field, _MISSING), lambda: self.text(args))
        if value is _MISSING:
            fail(
                self.answer.text(args),
                f"{show(result)} (type {type(result).__name__}), which has no {self.field}",
                f"a {self.record}, with all its fields",
            )
        return value


def where_raised(error: BaseException) -> str:
    """The line of the learner's code that raised, if it can be told."""
    library = __file__.rsplit("/check/", 1)[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(library):
            code = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
            return f" (line {frame.lineno}: {code})" if code else ""
    return ""


def _global_random_state() -> tuple[object, ...]:
    state: Any = np.random.get_state(legacy=False)
    mt19937 = state["state"]
    return mt19937["key"].tobytes(), mt19937["pos"], state["has_gauss"], hash(random.getstate())


# --- comparing ------------------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Equality that also works for arrays, of numpy or torch, and for containers of them."""
    if hasattr(a, "shape") and hasattr(b, "shape"):  # arrays of numpy or torch
        return type(a) is type(b) and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def close(a: float, b: float, rel: float = REL_TOL) -> bool:
    """Equal up to rounding."""
    return math.isclose(a, b, rel_tol=rel, abs_tol=1e-300)


def expect_numbers(
    answer: Answer,
    cases: Sequence[tuple[Any, ...]],
    right: Callable[..., float],
    mistakes: Sequence[Mistake],
    whole: bool = False,
    what: str = "a number",
) -> None:
    """Compare a numeric answer with the right function on every case; name the mistake that explains it best.

    Args:
        answer: the answer.
        cases: argument tuples; put those first that tell mistakes apart.
        right: the reference answer.
        mistakes: known ones, the likeliest first.
        whole: insist on an integer type.
        what: what one result is, for messages.
    """
    for case in cases:
        raw = answer(*case)
        got = answer.as_number(raw, answer.text(case), what)
        expected = right(*case)
        if not close(got, expected):
            mistake = diagnose(answer, cases, right, mistakes)
            fail(answer.text(case), show(got), show(expected), mistake)
        if whole and not isinstance(got, int):
            fail(
                answer.text(case),
                f"{show(got)} (type {type(got).__name__})",
                f"the int {expected}",
                ("returns-a-float", "A number of sequences is a count: return an int."),
            )
    first = cases[0]
    if not close(answer.number(*first), right(*first)):
        fail(
            f"{answer.text(first)}   (called a second time)",
            show(answer.number(*first)),
            show(right(*first)),
            (
                "depends-on-earlier-calls",
                "The result must follow from the arguments, not from what ran before.",
            ),
        )


def diagnose(
    answer: Answer, cases: Sequence[tuple[Any, ...]], right: Callable[..., Any], mistakes: Sequence[Mistake]
) -> tuple[str, str] | None:
    """The known mistake that agrees with the answer on most cases, if it explains nearly all the wrong ones."""
    results = []
    for case in cases:
        try:
            results.append((case, answer.number(*case)))
        except CheckFailed:
            continue
    wrong = [(case, got) for case, got in results if not close(got, right(*case))]
    best, agreement = None, 0
    for mistake in mistakes:
        agreed = sum(_reproduces(mistake, case, got) for case, got in results)
        explained = sum(_reproduces(mistake, case, got) for case, got in wrong)
        if agreed > agreement and explained >= max(1, 0.8 * len(wrong)):
            best, agreement = mistake, agreed
    return (best.slug, best.why) if best else None


def _reproduces(mistake: Mistake, case: tuple[Any, ...], got: float) -> bool:
    try:
        return close(mistake.wrong(*case), got)
    except (ArithmeticError, ValueError, TypeError):
        return False


# --- a check, seen from outside -------------------------------------------------------------------------


def part(name: str, seconds: float = 5.0) -> Callable[[Callable[[Answer, int], str]], Callable[..., None]]:
    """Make a check of one exercise part out of a function that gets the `Answer` and a seed.

    The function returns what was verified, in a few words. The check prints that as one line and returns None. Its
    attribute `answer_name` is the name below.

    Args:
        name: the name of the learner's function or class.
        seconds: time limit of each call of the answer.
    """

    def decorate(body: Callable[[Answer, int], str]) -> Callable[..., None]:
        @functools.wraps(body)
        def check(answer: Any, seed: int = 0) -> None:
            try:
                verified = body(Answer(answer, name, seconds, body.__name__), seed)
            except CheckFailed as failure:
                # A fresh exception: no frames of the library, no chain of causes.
                raise failure.with_traceback(None) from None
            print(f"✓ {name}: {verified}")

        check.answer_name = name  # type: ignore[attr-defined]
        return check

    return decorate
