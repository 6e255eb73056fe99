"""Check of exercise 5: static and continuous batching.

What is compared is who runs in each step, in whichever slots, and the three numbers. First come, first served
leaves no choice there: any right answer runs the same requests in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lessonlib import reference
from lessonlib.check.harness import Answer, CheckFailed, close, fail, part, show
from lessonlib.check.wrong_batching import NUMBER_MISTAKES, SCHEDULE_MISTAKES, Case, Number, Rows, Scheduler
from lessonlib.records import Policy, Request

NUMBERS = ("n_steps", "slot_use", "mean_latency")


@dataclass(frozen=True, eq=False)
class Run:
    """A case, and what an answer made of it: who runs in each step, and the numbers by name."""

    case: Case
    rows: Rows
    numbers: dict[str, float]


# --- cases ----------------------------------------------------------------------------------------------


def _of(*pairs: tuple[int, int]) -> list[Request]:
    return [Request(arrival, n_steps) for arrival, n_steps in pairs]


def _together(*n_steps: int) -> list[Request]:
    return _of(*((0, n) for n in n_steps))


def cases(seed: int) -> list[Case]:
    """The lesson's examples, edges (one slot, more slots than requests, idle gaps, ties), then random ones."""
    fixed: list[tuple[list[Request], int]] = [
        (_together(3, 1, 2, 4), 2),
        (_together(8, 1, 1, 1, 8, 1, 1, 1), 4),
        (_of((0, 4), (1, 2), (1, 1), (2, 3), (3, 1)), 2),
        (_of((3, 2), (0, 5), (0, 1), (4, 1), (1, 3)), 2),
        (_of((2, 2), (9, 1), (9, 3), (3, 1)), 2),
        (_together(2, 5, 3), 1),
        (_together(3, 2), 5),
        (_together(1), 1),
    ]
    rng = np.random.default_rng(seed)
    for _ in range(24):
        n, span = int(rng.integers(1, 13)), int(rng.choice([1, 8, 40]))
        pairs = [(int(rng.integers(span)), int(rng.integers(1, 10))) for _ in range(n)]
        fixed.append((_of(*pairs), int(rng.integers(1, 6))))
    policies: tuple[Policy, Policy] = ("static", "continuous")
    return [(requests, n_slots, policy) for requests, n_slots in fixed for policy in policies]


# --- reading a result -----------------------------------------------------------------------------------


def _field(answer: Answer, case: Case, result: Any, name: str) -> Any:
    if result is None:
        answer.as_number(None, answer.text(case), "a BatchingResult")
    try:
        return getattr(result, name)
    except AttributeError:
        fail(
            answer.text(case),
            f"{show(result)} (type {type(result).__name__}), which has no {name}",
            "a BatchingResult, with all its fields",
        )


def _cells(text: str, case: Case, schedule: Any) -> np.ndarray:
    """The schedule as an array of whole numbers, a row per step and a column per slot."""
    n_steps, n_slots = reference.simulate(*case).schedule.shape
    try:
        cells = np.array(schedule, dtype=float)
    except (TypeError, ValueError):
        cells = np.array(np.nan)
    if cells.ndim != 2 or not np.all(cells == np.round(cells)):
        fail(
            text, show(schedule), f"whole numbers, a row of {n_slots} for each step: a request's index per slot, or -1"
        )
    if cells.shape[1] != n_slots:
        mistake = ("transposed", "A row is a step, a column is a slot.") if cells.shape == (n_slots, n_steps) else None
        fail(
            text,
            f"an array of shape {cells.shape}",
            f"a row per step, a column per slot: ({n_steps}, {n_slots})",
            mistake,
        )
    return cells


def _read_rows(text: str, case: Case, schedule: Any) -> Rows:
    """Who runs in each step, from an array or a list of lists."""
    cells, last = _cells(text, case, schedule), len(case[0]) - 1
    if cells.size and (cells.max() > last or cells.min() < -1):
        outside = next(cell for cell in cells.ravel() if not -1 <= cell <= last)
        mistake = None
        if outside == last + 1:
            mistake = ("one-based", "Requests are numbered from 0, by their place in the list; an idle slot holds -1.")
        fail(text, f"a cell that holds {outside:.0f}", f"0 to {last}, or -1 in an idle slot", mistake)
    rows = [tuple(sorted(int(i) for i in row if i >= 0)) for row in cells]
    for t, row in enumerate(rows):
        twice = [i for i in row if row.count(i) > 1]
        if twice:
            fail(text, f"request {twice[0]} in two slots of step {t}", "a request in one slot at a time")
    return rows


def _run(answer: Answer, case: Case) -> Run:
    result, text = answer(*case), answer.text(case)
    numbers = {name: answer.as_number(_field(answer, case, result, name), f"{text}.{name}") for name in NUMBERS}
    return Run(case, _read_rows(f"{text}.schedule", case, _field(answer, case, result, "schedule")), numbers)


def _right(case: Case) -> Run:
    result = reference.simulate(*case)
    rows = [tuple(sorted(int(i) for i in row if i >= 0)) for row in result.schedule]
    return Run(case, rows, {name: getattr(result, name) for name in NUMBERS})


# --- explaining -----------------------------------------------------------------------------------------


def _runs(answer: Answer, seed: int) -> list[Run]:
    """What the answer makes of the cases, without those on which it breaks."""
    runs = []
    for case in cases(seed):
        try:
            runs.append(_run(answer, case))
        except CheckFailed:
            continue
    return runs


def _best(
    candidates: Sequence[tuple[str, str, Callable[[Run], bool]]], wrong: Sequence[Run], right: Sequence[Run]
) -> tuple[str, str] | None:
    """The mistake that agrees with the answer on most runs, if it explains nearly all the wrong ones.

    Args:
        candidates: slug, sentence, and whether the mistake gives what the answer gave.
        wrong: runs in which the answer is wrong.
        right: runs in which it is right.
    """
    best, most, may_miss = None, 0, 0.2 * len(wrong)
    for slug, why, agrees in candidates:
        missed = 0
        for run in wrong:
            missed += not agrees(run)
            if missed > may_miss:
                break
        else:
            agreed = len(wrong) - missed + sum(map(agrees, right))
            if agreed > most:
                best, most = (slug, why), agreed
    return best


def _explain_schedule(runs: Sequence[Run]) -> tuple[str, str] | None:
    """The wrong scheduler that runs whom the answer runs."""

    def runs_the_same(scheduler: Scheduler) -> Callable[[Run], bool]:
        return lambda run: run.rows == scheduler(*run.case)

    wrong = [run for run in runs if run.rows != _right(run.case).rows]
    right = [run for run in runs if run not in wrong]
    return _best([(slug, why, runs_the_same(scheduler)) for slug, why, scheduler in SCHEDULE_MISTAKES], wrong, right)


def _explain_number(name: str, runs: Sequence[Run]) -> tuple[str, str] | None:
    """The wrong formula for one of the numbers, in runs whose schedule is right."""

    def gives_the_same(number: Number) -> Callable[[Run], bool]:
        return lambda run: close(float(number(run.case, run.rows)), run.numbers[name])

    rights = [(run, _right(run.case)) for run in runs]
    rights = [(run, right) for run, right in rights if run.rows == right.rows]
    wrong = [run for run, right in rights if not close(run.numbers[name], right.numbers[name])]
    right = [run for run, _ in rights if run not in wrong]
    return _best([(slug, why, gives_the_same(number)) for slug, why, number in NUMBER_MISTAKES[name]], wrong, right)


# --- the check ------------------------------------------------------------------------------------------


def _what_runs(rows: Rows, t: int) -> str:
    if t >= len(rows):
        return f"no step {t}: the schedule ends before it"
    if not rows[t]:
        return f"step {t} idle"
    return f"request{'s' * (len(rows[t]) > 1)} {', '.join(map(str, rows[t]))} in step {t}"


def _judge(answer: Answer, case: Case, seed: int) -> None:
    run, right, text = _run(answer, case), _right(case), answer.text(case)
    for t in range(max(len(run.rows), len(right.rows))):
        if run.rows[t : t + 1] != right.rows[t : t + 1]:
            mistake = _explain_schedule(_runs(answer, seed))
            fail(f"{text}.schedule", _what_runs(run.rows, t), _what_runs(right.rows, t), mistake)
    for name, expected in right.numbers.items():
        if not close(run.numbers[name], expected):
            mistake = _explain_number(name, _runs(answer, seed))
            fail(f"{text}.{name}", show(run.numbers[name]), show(expected), mistake)


@part("simulate")
def simulate(answer: Answer, seed: int) -> str:
    """Who runs in each step, and the three numbers, under both policies."""
    all_cases = cases(seed)
    for case in all_cases:
        _judge(answer, case, seed)
    first = all_cases[0]
    if _run(answer, first).rows != _right(first).rows:
        fail(
            f"{answer.text(first)}   (called a second time)",
            "another schedule",
            "the same one",
            ("depends-on-earlier-calls", "The result must follow from the arguments, not from what ran before."),
        )
    return f"{len(all_cases)} runs right, step by step, with ties, idle steps, one slot and more slots than requests."
