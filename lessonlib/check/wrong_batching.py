"""What learners get wrong in exercise 5: wrong schedulers, as twists of one loop, and wrong numbers of right runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lessonlib.records import Policy, Request

Case = tuple[list[Request], int, Policy]
Rows = list[tuple[int, ...]]  # the requests that run in each step, in ascending order


# --- wrong schedulers -----------------------------------------------------------------------------------


@dataclass
class State:
    """What a scheduler sees before a step."""

    n_slots: int
    running: dict[int, int] = field(default_factory=dict)  # request -> steps left
    waiting: list[int] = field(default_factory=list)
    n_coming: int = 0
    n_started: int = 0  # requests started since the slots were last empty
    n_before: int = 0  # requests that ran in the step before


Places = Callable[[State], int]  # how many of the waiting may start now


def when_empty(state: State) -> int:
    return 0 if state.running else state.n_slots


def free_slots(state: State) -> int:
    return state.n_slots - len(state.running)


@dataclass(frozen=True)
class Twist:
    """A misunderstanding of the scheduler. Its defaults are the right scheduler.

    Args:
        slug: short name for reports.
        why: one sentence on why it is wrong.
        static: places for waiting requests, in static batching.
        continuous: the same, in continuous batching.
        need: steps that a request runs.
        ready: the step from which it may run.
        key: the waiting request with the least key goes first; called with the request and its place in the list.
        after: changes the state after each step, given the policy and the requests that have just ended.
        idle: which idle steps are left in the schedule: "all", "inner" (not those before the first request), "none".
        until_idle: stop at the first idle step after work has begun.
    """

    slug: str = ""
    why: str = ""
    static: Places = when_empty
    continuous: Places = free_slots
    need: Callable[[Request], int] = lambda request: request.n_steps
    ready: Callable[[Request], int] = lambda request: request.arrival
    key: Callable[[Request, int], Any] = lambda request, i: (request.arrival, i)
    after: Callable[[State, Policy, list[int]], None] = lambda state, policy, ended: None
    idle: str = "all"
    until_idle: bool = False

    def rows(self, requests: Sequence[Request], n_slots: int, policy: Policy) -> Rows:
        """Who would run in each step, if this were right."""
        state = State(n_slots)
        rows: Rows = []
        coming = [i for i in range(len(requests)) if self.need(requests[i]) > 0]
        coming.sort(key=lambda i: self.ready(requests[i]), reverse=True)
        places = self.static if policy == "static" else self.continuous
        while (coming or state.waiting or state.running) and len(rows) < 1000:
            while coming and self.ready(requests[coming[-1]]) <= len(rows):
                state.waiting.append(coming.pop())
            state.waiting.sort(key=lambda i: self.key(requests[i], i))
            state.n_coming = len(coming)
            state.n_started *= bool(state.running)
            for _ in range(min(places(state), len(state.waiting))):
                i = state.waiting.pop(0)
                state.running.setdefault(i, self.need(requests[i]))
                state.n_started += 1
            if self.until_idle and not state.running and any(rows):
                break
            rows.append(tuple(sorted(state.running)))
            state.n_before = len(state.running)
            ended = [i for i in state.running if state.running[i] <= 1]
            state.running = {i: left - 1 for i, left in state.running.items() if left > 1}
            self.after(state, policy, ended)
        if self.idle == "none":
            return [row for row in rows if row]
        return rows[next(t for t, row in enumerate(rows) if row) :] if self.idle == "inner" else rows


def _drop_the_rest(state: State, policy: Policy, ended: list[int]) -> None:
    if policy == "static" and ended:
        state.running.clear()


def _mixes_batches(state: State) -> int:
    return free_slots(state) if state.n_before > len(state.running) or not state.running else 0


_FCFS = (
    "First come, first served: the request that arrived earliest goes first, and of equals the one earlier in the list."
)
_SHORTEST = "A static batch runs until its longest request has ended, not its shortest."
_NONE_JOINS = (
    "In a static batch no request joins: a slot that becomes free, or was never used, idles until all have ended."
)

TWISTS = [
    Twist("static-joins", _NONE_JOINS, static=free_slots),
    Twist("static-joins", _NONE_JOINS, static=lambda s: s.n_slots - s.n_started),
    Twist("ends-with-shortest", _SHORTEST, after=_drop_the_rest),
    Twist("ends-with-shortest", _SHORTEST, static=_mixes_batches),
    Twist(
        "continuous-waits",
        "Continuous batching does not wait for the whole batch: before every step, each free slot takes a request.",
        continuous=when_empty,
    ),
    Twist(
        "policies-swapped",
        "The policies are swapped: a static batch waits until all of its requests have ended.",
        static=free_slots,
        continuous=when_empty,
    ),
    Twist(
        "waits-for-full-batch",
        "A static batch need not be full: up to n_slots waiting requests start as soon as the slots are empty.",
        static=lambda s: when_empty(s) if len(s.waiting) >= s.n_slots or not s.n_coming else 0,
    ),
    Twist(
        "one-join-per-step",
        "Only one request joined in a step: each free slot takes one.",
        continuous=lambda s: min(1, free_slots(s)),
    ),
    Twist(
        "one-join-per-step",
        "Only one request joined in a step, where several slots were free.",
        static=lambda s: 0 if s.running else 1,
        continuous=lambda s: min(1, free_slots(s)),
    ),
    Twist(
        "one-at-a-time",
        "The requests ran one after the other: up to n_slots of them share every step.",
        static=lambda s: 0 if s.running else 1,
        continuous=lambda s: 0 if s.running else 1,
    ),
    Twist(
        "joins-late",
        "A freed slot stayed empty for a step: who ends in step t has left it before step t + 1.",
        continuous=lambda s: s.n_slots - s.n_before,
    ),
    Twist(
        "joins-late",
        "Freed slots stayed empty for a step: who ends in step t has left before step t + 1.",
        static=lambda s: 0 if s.running else s.n_slots - s.n_before,
        continuous=lambda s: s.n_slots - s.n_before,
    ),
    Twist(
        "joins-late",
        "A step passed between two static batches: the next one starts in the step after the longest request's last.",
        static=lambda s: 0 if s.n_before else s.n_slots,
    ),
    Twist(
        "prefill-not-counted",
        "A step is missing per request: n_steps counts the prefill, too, so a request runs in exactly n_steps steps.",
        need=lambda r: r.n_steps - 1,
    ),
    Twist(
        "extra-prefill-step",
        "A request ran a step too long: its prefill is the first of its n_steps steps, not one more.",
        need=lambda r: r.n_steps + 1,
    ),
    Twist(
        "arrivals-ignored",
        "Arrivals are ignored: a request may not run before step `arrival`.",
        ready=lambda r: 0,
    ),
    Twist(
        "arrivals-ignored",
        "Arrivals are ignored: a request may not run before step `arrival`, wherever it stands in the list.",
        ready=lambda r: 0,
        key=lambda r, i: i,
    ),
    Twist(
        "arrival-excluded",
        "A request may run in step `arrival` itself: compare with <=, not with <.",
        ready=lambda r: r.arrival + 1,
    ),
    Twist(
        "idle-steps-left-out",
        "Steps in which nothing runs pass, too: while no request is there, the clock goes on and all slots hold -1.",
        idle="none",
    ),
    Twist(
        "idle-steps-left-out",
        "Step 0 is step 0, even where the first request arrives later: the steps before it are idle ones.",
        idle="inner",
    ),
    Twist(
        "stops-when-idle",
        "Requests are lost: the run does not end when the slots are empty, but when nothing runs, waits or will come.",
        until_idle=True,
    ),
    Twist("not-fcfs", "The shortest went first. " + _FCFS, key=lambda r, i: (r.n_steps, r.arrival, i)),
    Twist("not-fcfs", "The longest went first. " + _FCFS, key=lambda r, i: (-r.n_steps, r.arrival, i)),
    Twist("not-fcfs", "The newest went first. " + _FCFS, key=lambda r, i: (-r.arrival, i)),
    Twist("not-fcfs", "The newest went first. " + _FCFS, key=lambda r, i: (-r.arrival, -i)),
    Twist("not-fcfs", "The last in the list went first. " + _FCFS, key=lambda r, i: -i),
    Twist("not-fcfs", "The order of the list was taken, not that of the arrivals. " + _FCFS, key=lambda r, i: i),
    Twist("not-fcfs", "Of equal arrivals the last in the list went first. " + _FCFS, key=lambda r, i: (r.arrival, -i)),
    Twist(
        "not-fcfs", "Of equal arrivals the shortest went first. " + _FCFS, key=lambda r, i: (r.arrival, r.n_steps, i)
    ),
    Twist(
        "not-fcfs", "Of equal arrivals the longest went first. " + _FCFS, key=lambda r, i: (r.arrival, -r.n_steps, i)
    ),
]


def _list_order(requests: Sequence[Request], n_slots: int, policy: Policy) -> Rows:
    """The head of the list blocks those behind it, though they arrived earlier."""
    latest = np.maximum.accumulate([request.arrival for request in requests])
    held_up = [Request(int(t), request.n_steps) for t, request in zip(latest, requests, strict=True)]
    return Twist().rows(held_up, n_slots, policy)


def _padded(requests: Sequence[Request], n_slots: int, policy: Policy) -> Rows:
    """A static batch whose members all run until the longest ends."""
    right = Twist().rows(requests, n_slots, policy)
    if policy != "static":
        return right
    padded: Rows = []
    batch: tuple[int, ...] = ()
    for row in right:
        batch = batch if set(row) <= set(batch) and row else row
        padded.append(batch)
    return padded


def _drops_single(requests: Sequence[Request], n_slots: int, policy: Policy) -> Rows:
    """One step less per request, and one at least."""
    return Twist(need=lambda r: max(1, r.n_steps - 1)).rows(requests, n_slots, policy)


def _renumbered(requests: Sequence[Request], n_slots: int, policy: Policy) -> Rows:
    """Requests by their place in the order of arrival."""
    return Twist().rows(sorted(requests, key=lambda request: request.arrival), n_slots, policy)


Scheduler = Callable[[Sequence[Request], int, Policy], Rows]
SCHEDULE_MISTAKES: list[tuple[str, str, Scheduler]] = [
    *((twist.slug, twist.why, twist.rows) for twist in TWISTS),
    ("not-fcfs", "The head of the list held up requests that had arrived before it. " + _FCFS, _list_order),
    (
        "renumbered",
        "Requests were numbered after sorting: the schedule holds their places in the list that was given.",
        _renumbered,
    ),
    (
        "idle-marked-busy",
        "Requests of a static batch were kept in their slots after their last step: such a slot is idle, -1.",
        _padded,
    ),
]
SCHEDULE_MISTAKES += [(slug, why, _drops_single) for slug, why, _ in SCHEDULE_MISTAKES if slug == "prefill-not-counted"]

# --- wrong numbers from a right schedule ----------------------------------------------------------------

Number = Callable[[Case, Rows], float]


def _busy(rows: Rows) -> int:
    return sum(map(len, rows))


def _ends(case: Case, rows: Rows) -> np.ndarray:
    """The step after each request's last one."""
    last = {i: t for t, row in enumerate(rows) for i in row}
    return np.array([last[i] + 1 for i in range(len(case[0]))])


def _arrivals(case: Case) -> np.ndarray:
    return np.array([request.arrival for request in case[0]])


def _needs(case: Case) -> np.ndarray:
    return np.array([request.n_steps for request in case[0]])


_LAST = "The last step is not counted: steps are numbered from 0, so {} is its index plus 1."
_IDLE = "Steps in which nothing runs are left out: they pass, too."
_CELLS = "Slot use is the share of all n_steps · n_slots cells that are busy."
_LATENCY = "Latency is the index of the request's last step + 1 - its arrival. "

NUMBER_MISTAKES: dict[str, list[tuple[str, str, Number]]] = {
    "n_steps": [
        ("last-step-not-counted", _LAST.format("n_steps"), lambda case, rows: len(rows) - 1),
        ("idle-steps-left-out", _IDLE, lambda case, rows: sum(map(bool, rows))),
        ("work-for-steps", "This is the sum of all n_steps: slots share a step.", lambda case, rows: _busy(rows)),
        (
            "bound-for-steps",
            "This is the least number of steps for so much work, without idle slots. The schedule may need more.",
            lambda case, rows: -(-_busy(rows) // case[1]),
        ),
        ("one-step-too-many", "One step too many: n_steps ends with the last busy step.",
         lambda case, rows: len(rows) + 1),
    ],
    "slot_use": [
        ("use-over-requests", "Busy cells were divided by requests × steps. " + _CELLS,
         lambda case, rows: _busy(rows) / (len(rows) * len(case[0]))),
        ("use-over-requests", "Busy cells were divided by the number of requests. " + _CELLS,
         lambda case, rows: _busy(rows) / len(case[0])),
        ("use-over-steps", "This is the mean number of busy slots, not yet divided by n_slots. " + _CELLS,
         lambda case, rows: _busy(rows) / len(rows)),
        ("use-over-steps", "Busy cells were divided by n_slots alone. " + _CELLS,
         lambda case, rows: _busy(rows) / case[1]),
        ("use-over-steps", "This is the share of steps in which anything ran. " + _CELLS,
         lambda case, rows: sum(map(bool, rows)) / len(rows)),
        ("idle-share", "This is the idle share. " + _CELLS, lambda case, rows: 1 - _busy(rows) / (len(rows) * case[1])),
        ("busy-count", "This is the number of busy cells, not their share. " + _CELLS, lambda case, rows: _busy(rows)),
        ("percent", "This is in percent: slot_use is a share between 0 and 1.",
         lambda case, rows: 100 * _busy(rows) / (len(rows) * case[1])),
        ("idle-steps-left-out", _IDLE + " " + _CELLS,
         lambda case, rows: _busy(rows) / (sum(map(bool, rows)) * case[1])),
        ("last-step-not-counted", _LAST.format("n_steps"),
         lambda case, rows: _busy(rows) / (max(1, len(rows) - 1) * case[1])),
        ("request-0-idle", "Request 0 was taken for an idle slot: -1 marks those. " + _CELLS,
         lambda case, rows: sum(i > 0 for row in rows for i in row) / (len(rows) * case[1])),
        ("idle-marked-busy", "Slots of a static batch that had ended were counted as busy. " + _CELLS,
         lambda case, rows: _busy(_padded(*case)) / (len(rows) * case[1])),
    ],
    "mean_latency": [
        ("latency-from-zero", _LATENCY + "It was counted from step 0 here.",
         lambda case, rows: _ends(case, rows).mean()),
        ("last-step-not-counted", _LATENCY + "The + 1 is missing: the last step takes time, too.",
         lambda case, rows: (_ends(case, rows) - 1 - _arrivals(case)).mean()),
        ("latency-from-start", _LATENCY + "The wait before the first step counts, too.",
         lambda case, rows: _needs(case).mean()),
        ("wait-only", _LATENCY + "This is the wait before the first step alone.",
         lambda case, rows: (_ends(case, rows) - _needs(case) - _arrivals(case)).mean()),
        ("latency-to-first-token", _LATENCY + "This goes to the end of the first step, which is TTFT.",
         lambda case, rows: (_ends(case, rows) - _needs(case) + 1 - _arrivals(case)).mean()),
        ("sum-for-mean", _LATENCY + "This is the sum over requests: divide by their number.",
         lambda case, rows: (_ends(case, rows) - _arrivals(case)).sum()),
        ("mean-over-slots", _LATENCY + "The sum was divided by n_slots, not by the number of requests.",
         lambda case, rows: (_ends(case, rows) - _arrivals(case)).sum() / case[1]),
        ("mean-over-steps", _LATENCY + "The sum was divided by n_steps, not by the number of requests.",
         lambda case, rows: (_ends(case, rows) - _arrivals(case)).sum() / len(rows)),
        ("median-for-mean", _LATENCY + "This is their median.",
         lambda case, rows: float(np.median(_ends(case, rows) - _arrivals(case)))),
        ("max-for-mean", _LATENCY + "This is the largest.",
         lambda case, rows: (_ends(case, rows) - _arrivals(case)).max()),
        ("latency-of-batch", _LATENCY + "Each ends with its own last step, not with its batch's.",
         lambda case, rows: (_ends(case, _padded(*case)) - _arrivals(case)).mean()),
        ("latency-of-run", _LATENCY + "This is n_steps, the length of the whole run.",
         lambda case, rows: len(rows)),
    ],
}  # fmt: skip
