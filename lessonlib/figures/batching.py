"""Figure 2: static against continuous batching on the same requests (Yu et al. 2022, Orca, OSDI)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from string import ascii_lowercase, digits
from typing import Any

import numpy as np

from lessonlib.check.harness import Answer, close, fail
from lessonlib.figures import interactive, still
from lessonlib.records import BatchingResult, Policy, Request
from lessonlib.reference import simulate as reference

TITLE = "Static against continuous batching"
N_REQUESTS, N_SLOTS, N_SETS = 12, 4, 6
LONGEST = (2, 4, 8, 12, 16, 24)
POLICIES: tuple[Policy, ...] = ("static", "continuous")
START = {"longest": 16, "set": 0}
MOST_STEPS = 400  # more than any answer that ends needs: 12 requests of 24 steps, one after the other, take 288
NUMBERS = ("n_steps", "slot_use", "mean_latency")
Packed = dict[str, Any]
_DIGITS = digits + ascii_lowercase


def workload(seed: int, longest: int) -> list[Request]:
    """Twelve requests that arrive within a few steps: most outputs short, some long, one of them the longest."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(np.append(np.zeros(N_SLOTS, dtype=int), rng.integers(0, 9, N_REQUESTS - N_SLOTS)))
    shares = np.where(rng.random(N_REQUESTS) < 0.65, rng.uniform(0, 0.25, N_REQUESTS), rng.uniform(0.4, 1, N_REQUESTS))
    shares[rng.integers(N_REQUESTS)] = 1
    return [
        Request(int(arrival), max(1, round(share * longest))) for arrival, share in zip(arrivals, shares, strict=True)
    ]


@interactive.or_message(TITLE, "figures.batching()")
def batching(simulate: Callable[..., BatchingResult] | None = None) -> interactive.Figure:
    """The same random requests under static and continuous batching, slot by slot and step by step.

    Args:
        simulate: the learner's `simulate(requests, n_slots, policy)`; the reference where it is left out.
    """
    answer = interactive.learners(simulate, "simulate")
    runs = _learners_runs(answer) if answer else _runs(lambda *args: _packed(reference(*args)))
    start = runs[START["longest"]][START["set"]]
    return interactive.figure(
        "batching",
        title=TITLE,
        idea="The same 12 requests on 4 slots, static and continuous. Make the longest output longer: who idles?",
        alt="A row per slot and a column per step, for both policies: prefill, decode and idle cells.",
        data={
            "state": START,
            "longest": LONGEST,
            "sets": N_SETS,
            "n_slots": N_SLOTS,
            "yours": answer is not None,
            "runs": runs,
        },
        picture=_still(start),
        height=258,
        readings=_readings(start),
        says=_says(start, yours=answer is not None),
    )


def _runs(run: Callable[..., Packed]) -> dict[int, list[list[Packed]]]:
    """Longest output -> set of requests -> policy: one simulation, packed."""
    return {
        longest: [[run(workload(seed, longest), N_SLOTS, policy) for policy in POLICIES] for seed in range(N_SETS)]
        for longest in LONGEST
    }


def _learners_runs(answer: Answer) -> dict[int, list[list[Packed]]]:
    """The same with the learner's function, under one time limit; with the reference's numbers where they differ."""
    now: list[tuple[Any, ...]] = [()]

    def run(*args: Any) -> Packed:
        now[0] = args
        requests, *rest = args
        packed = _packed(_checked(answer, args, answer.function(list(requests), *rest)))
        expected = _packed(reference(*args))
        if any(not close(packed[key], expected[key]) for key in NUMBERS):
            packed["right"] = [expected[key] for key in NUMBERS]
        return packed

    return answer.run(lambda: _runs(run), lambda: answer.text(now[0]))


def _checked(answer: Answer, args: tuple[Any, ...], result: Any) -> BatchingResult:
    text = answer.text(args)
    numbers: dict[str, Any] = {}
    for name in NUMBERS:
        if not hasattr(result, name):
            fail(text, repr(result), "a BatchingResult(n_steps, slot_use, mean_latency, schedule)")
        numbers[name] = answer.as_number(getattr(result, name), f"{text}.{name}")
    schedule = np.asarray(result.schedule)
    if schedule.ndim != 2 or schedule.shape[1] != N_SLOTS or not 1 <= len(schedule) <= MOST_STEPS:
        fail(f"{text}.schedule", f"shape {schedule.shape}", f"shape (n_steps, {N_SLOTS})")
    if not np.isin(schedule, range(-1, N_REQUESTS)).all():
        fail(f"{text}.schedule", "other values", f"indices of requests, 0 to {N_REQUESTS - 1}, and −1 for idle")
    return BatchingResult(schedule=schedule.astype(int), **numbers)


def _packed(result: BatchingResult) -> Packed:
    """The numbers, and per slot the runs of one request (or "." for idle) with their lengths, digits in base 36."""
    slots = []
    for column in np.asarray(result.schedule).T.tolist():
        word = ""
        for request, cells in itertools.groupby(column):
            n = len(list(cells))
            name = "." if request < 0 else _DIGITS[request]
            word += f"{name}z" * (n // 35) + (f"{name}{_DIGITS[n % 35]}" if n % 35 else "")
        slots.append(word)
    return {**{key: float(getattr(result, key)) for key in NUMBERS}, "slots": slots}


# --- the first state, as text and as a still picture ------------------------------------------------------


def _readings(start: list[Packed]) -> list[tuple[str, str]]:
    def both(show: Callable[[Packed], str]) -> str:
        return " vs ".join(show(run) for run in start)

    return [
        ("Steps", both(lambda run: still.fixed(run["n_steps"]))),
        ("Slot use", both(lambda run: f"{still.fixed(100 * run['slot_use'])}%")),
        ("Mean latency, steps", both(lambda run: still.fixed(run["mean_latency"], 1))),
    ]


def _numbers(n_steps: float, slot_use: float, mean_latency: float) -> tuple[str, str, str]:
    return still.fixed(n_steps), f"{still.fixed(100 * slot_use)}%", still.fixed(mean_latency, 1)


def _says(start: list[Packed], yours: bool) -> str:
    static, continuous = start
    for policy, run in zip(POLICIES, start, strict=True):
        if "right" in run:
            steps, use, latency = _numbers(run["n_steps"], run["slot_use"], run["mean_latency"])
            return f"Your simulate gives {steps} steps, slot use {use} and mean latency {latency} for {policy}; " + (
                "the reference {}, {} and {}.".format(*_numbers(*run["right"]))
            )
    slower = still.three(static["n_steps"] / continuous["n_steps"])
    words = f"Static needs {slower} times the steps: a slot that is done idles until the longest of its batch ends."
    return words + (" Run by your simulate." if yours else "")


def _still(start: list[Packed]) -> str:
    """Both schedules on one time axis."""
    total = max(sum(int(n, 36) for n in run["slots"][0][1::2]) for run in start)
    at = still.linear(0, total, 40, 656)
    svg = still.keys(0, 12, [("orange", "prefill"), ("blue", "decode"), ("empty", "idle")])
    for i, (policy, run) in enumerate(zip(POLICIES, start, strict=True)):
        top = 34 + i * 116
        svg += still.text(0, top, f"{policy.capitalize()}: {still.fixed(run['n_steps'])} steps", "head")
        for slot, word in enumerate(run["slots"]):
            y, step = top + 8 + slot * 23, 0
            svg += still.text(0, y + 15, f"slot {slot}", "soft")
            for request, n in zip(word[::2], (int(n, 36) for n in word[1::2]), strict=True):
                x, width = at(step), at(step + n) - at(step) - 1
                if request == ".":
                    svg += still.rect(x, y, width, 20, "empty")
                else:
                    svg += still.rect(x, y, width, 20, "blue") + still.rect(x, y, at(1) - at(0) - 1, 20, "orange")
                step += n
    return svg
