"""Answers to exercise 5, right and wrong."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace

import numpy as np

from lessonlib.records import BatchingResult, Request
from lessonlib.reference import simulate
from tests.answers import Answers, Wrong

# --- right ----------------------------------------------------------------------------------------------


def result_of(rows, requests, n_slots):
    """A result from rows of request indices, by the definitions."""
    cells = np.full((len(rows), n_slots), -1)
    for t, row in enumerate(rows):
        cells[t, : len(row)] = row
    last = {i: t for t, row in enumerate(rows) for i in row if i >= 0}
    latency = sum(last[i] + 1 - r.arrival for i, r in enumerate(requests)) / len(requests)
    return BatchingResult(len(rows), np.count_nonzero(cells >= 0) / cells.size, latency, cells)


def by_event_heap(requests, n_slots, policy):
    """No loop over steps: a heap of the times at which slots are free, and the schedule filled in afterwards."""
    order = sorted(range(len(requests)), key=lambda i: (requests[i].arrival, i))
    start, slot_of = {}, {}
    if policy == "continuous":
        free = [(0, s) for s in range(n_slots)]
        for i in order:
            at, slot = heapq.heappop(free)
            # Among slots that are free in time, any will do.
            start[i], slot_of[i] = max(at, requests[i].arrival), slot
            heapq.heappush(free, (start[i] + requests[i].n_steps, slot))
    else:
        now = 0
        while order:
            now = max(now, requests[order[0]].arrival)
            batch = [i for i in order if requests[i].arrival <= now][:n_slots]
            for slot, i in enumerate(batch):
                start[i], slot_of[i] = now, slot
            now += max(requests[i].n_steps for i in batch)
            order = order[len(batch) :]
    ends = {i: start[i] + requests[i].n_steps for i in start}
    schedule = np.full((max(ends.values()), n_slots), -1, dtype=np.int32)
    for i, slot in slot_of.items():
        schedule[start[i] : ends[i], slot] = i
    return BatchingResult(
        max(ends.values()),
        sum(r.n_steps for r in requests) / schedule.size,
        np.mean([ends[i] - requests[i].arrival for i in ends]),
        schedule,
    )


def by_deque_and_lists(requests, n_slots, policy):
    """Plain lists and a deque of those that have arrived; the schedule is a list of lists."""
    coming = deque(sorted(enumerate(requests), key=lambda pair: pair[1].arrival))
    queue, slots, rows, total = deque(), [None] * n_slots, [], 0
    for t in count():
        while coming and coming[0][1].arrival <= t:
            queue.append(coming.popleft())
        if policy == "continuous" or not any(slots):
            for s in range(n_slots):
                if slots[s] is None and queue:
                    i, request = queue.popleft()
                    slots[s] = [i, request.n_steps]
        rows.append([-1 if slot is None else slot[0] for slot in slots])
        for s, slot in enumerate(slots):
            if slot:
                slot[1] -= 1
                if slot[1] == 0:
                    total += t + 1 - requests[slot[0]].arrival
                    slots[s] = None
        if not (coming or queue or any(slots)):
            busy = sum(cell != -1 for row in rows for cell in row)
            return BatchingResult(t + 1, busy / ((t + 1) * n_slots), total / len(requests), rows)


def last_slot_first(requests, n_slots, policy):
    """Fills the slots from the right."""
    result = simulate(requests, n_slots, policy)
    return replace(result, schedule=result.schedule[:, ::-1])


def another_record(requests, n_slots, policy):
    """Not a BatchingResult, but all of its fields, and numpy numbers."""
    result = simulate(requests, n_slots, policy)
    return SimpleNamespace(
        n_steps=np.int64(result.n_steps),
        slot_use=np.float64(result.slot_use),
        mean_latency=np.array(result.mean_latency),
        schedule=result.schedule.astype(float),
        extra="kept for a plot",
    )


class Slot:
    """A slot with a request in it, or none."""

    def __init__(self):
        self.request = self.left = None

    def take(self, i, n_steps):
        self.request, self.left = i, n_steps

    def step(self):
        now = -1 if self.request is None else self.request
        if self.request is not None:
            self.left -= 1
            if not self.left:
                self.request = None
        return now


def object_oriented(requests, n_slots, policy):
    slots = [Slot() for _ in range(n_slots)]
    todo = sorted(((r.arrival, i, r.n_steps) for i, r in enumerate(requests)), reverse=True)
    rows = []
    while todo or any(slot.request is not None for slot in slots):
        free = [slot for slot in slots if slot.request is None]
        if policy == "static" and len(free) < n_slots:
            free = []
        for slot in free:
            if todo and todo[-1][0] <= len(rows):
                _, i, n_steps = todo.pop()
                slot.take(i, n_steps)
        rows.append([slot.step() for slot in slots])
    cells = np.array(rows)
    ends = [np.flatnonzero((cells == i).any(axis=1))[-1] + 1 for i in range(len(requests))]
    waits = [end - request.arrival for end, request in zip(ends, requests, strict=True)]
    return BatchingResult(len(rows), (cells != -1).mean(), sum(waits) / len(waits), cells)


def recursive(requests, n_slots, policy):
    """A step as a function of the state before it."""

    def run(t, running, waiting, rows):
        if not running and not waiting:
            return rows
        if policy == "continuous" or not running:
            for s in sorted(set(range(n_slots)) - set(running)):
                if waiting and requests[waiting[0]].arrival <= t:
                    running, waiting = {**running, s: (waiting[0], requests[waiting[0]].n_steps)}, waiting[1:]
        row = [running.get(s, (-1, 0))[0] for s in range(n_slots)]
        running = {s: (i, left - 1) for s, (i, left) in running.items() if left > 1}
        return run(t + 1, running, waiting, [*rows, row])

    order = tuple(sorted(range(len(requests)), key=lambda i: requests[i].arrival))
    return result_of(run(0, {}, order, []), requests, n_slots)


def with_arrays(requests, n_slots, policy):
    """Everything in numpy arrays, over a horizon that is long enough."""
    arrival = np.array([r.arrival for r in requests])
    left = np.array([r.n_steps for r in requests])
    order = np.argsort(arrival, kind="stable")
    schedule = np.full((arrival.max() + left.sum(), n_slots), -1)
    slot = np.full(n_slots, -1)
    started = np.zeros(len(requests), dtype=bool)
    last = np.zeros(len(requests), dtype=int)
    for t in range(len(schedule)):
        if policy == "continuous" or np.all(slot == -1):
            ready = order[~started[order] & (arrival[order] <= t)]
            free = np.flatnonzero(slot == -1)
            n = min(len(ready), len(free))
            slot[free[:n]] = ready[:n]
            started[ready[:n]] = True
        schedule[t] = slot
        running = slot[slot >= 0]
        left[running] -= 1
        last[running] = t
        slot[(slot >= 0) & (left[slot] == 0)] = -1
    n_steps = int(last.max()) + 1
    return BatchingResult(
        n_steps, float((schedule[:n_steps] >= 0).mean()), float((last + 1 - arrival).mean()), schedule[:n_steps]
    )


def generator_of_steps(requests, n_slots, policy):
    """A generator gives the rows; prints while it works."""

    def steps():
        queue = sorted(((r.arrival, i) for i, r in enumerate(requests)))
        left = {}
        t = 0
        while queue or left:
            print("step", t)
            if policy == "continuous" or not left:
                while queue and len(left) < n_slots and queue[0][0] <= t:
                    _, i = queue.pop(0)
                    left[i] = requests[i].n_steps
            yield list(left)
            left = {i: n - 1 for i, n in left.items() if n > 1}
            t += 1

    rows = []
    slots = [-1] * n_slots
    for running in steps():  # put the sets into slots: those that stay, stay where they are
        slots = [i if i in running else -1 for i in slots]
        for i in running:
            if i not in slots:
                slots[slots.index(-1)] = i
        rows.append(list(slots))
    return result_of(rows, requests, n_slots)


def closes_gaps(requests, n_slots, policy):
    """Running requests move to the left when others end."""
    result = simulate(requests, n_slots, policy)
    rows = [sorted(i for i in row if i >= 0) for row in result.schedule.tolist()]
    return replace(result, schedule=np.array([row + [-1] * (n_slots - len(row)) for row in rows]))


# --- wrong ----------------------------------------------------------------------------------------------


def engine(
    requests,
    n_slots,
    policy,
    *,
    joins=lambda policy: policy,
    key=lambda i, r: (r.arrival, i),
    may_run=lambda r, t: r.arrival <= t,
    blocked=False,
    more=0,
    cut=False,
    full=False,
    per_step=99,
    cap=99,
    pause=False,
    skip_idle=False,
):
    """A step loop with a knob for each misunderstanding. joins: the policy that is really followed."""
    policy = joins(policy)
    waiting = sorted(range(len(requests)), key=lambda i: key(i, requests[i]))
    waiting = [i for i in waiting if requests[i].n_steps + more > 0]
    left = {i: requests[i].n_steps + more for i in waiting}
    slots, resting, rows, t = [-1] * n_slots, set(), [], 0
    while waiting or max(slots) >= 0:
        batch_done = max(slots) < 0
        ready = [i for i in waiting if may_run(requests[i], t)]
        if blocked:
            ready = [i for n, i in enumerate(waiting) if all(may_run(requests[j], t) for j in waiting[: n + 1])]
        open_ = policy == "continuous" or batch_done
        if full and policy == "static" and len(ready) < min(n_slots, len(waiting)):
            open_ = False
        started = 0
        for s in range(n_slots):
            if (
                open_
                and slots[s] < 0
                and s not in resting
                and ready
                and started < per_step
                and sum(i >= 0 for i in slots) < cap
            ):
                slots[s] = ready.pop(0)
                waiting.remove(slots[s])
                started += 1
        resting = set()
        if not (skip_idle and max(slots) < 0):
            rows.append(list(slots))
        ended = False
        for s, i in enumerate(slots):
            if i >= 0:
                left[i] -= 1
                if left[i] == 0:
                    slots[s], ended = -1, True
                    if pause:
                        resting.add(s)
        if cut and policy == "static" and ended:
            slots = [-1] * n_slots
        t += 1
    cells = np.array(rows)
    last = np.array([np.argwhere(cells == i)[-1, 0] if (cells == i).any() else 0 for i in range(len(requests))])
    latency = np.mean(last + 1 - np.array([r.arrival for r in requests]))
    return BatchingResult(len(cells), float(np.mean(cells >= 0)), float(latency), cells)


def scheduler(**knobs):
    return lambda requests, n_slots, policy: engine(requests, n_slots, policy, **knobs)


def numbers(**formulas):
    """The right schedule with a wrong number: formulas of (schedule, requests, n_slots, first, last, arrival)."""

    def answer(requests, n_slots, policy):
        right = simulate(requests, n_slots, policy)
        cells = right.schedule
        first = np.array([np.argwhere(cells == i)[0, 0] for i in range(len(requests))])
        last = np.array([np.argwhere(cells == i)[-1, 0] for i in range(len(requests))])
        arrival = np.array([r.arrival for r in requests])
        wrong = {
            name: formula(cells, len(requests), n_slots, first, last, arrival) for name, formula in formulas.items()
        }
        return replace(right, **wrong)

    return answer


def sorts_in_place(requests, n_slots, policy):
    requests.sort(key=lambda r: r.arrival)
    return simulate(requests, n_slots, policy)


@dataclass
class Remembers:
    """Right the first time that it sees a number of slots, and then the same again."""

    known: dict

    def __call__(self, requests, n_slots, policy):
        return self.known.setdefault((n_slots, policy), simulate(requests, n_slots, policy))


_calls = count()


def shared_clock(requests, n_slots, policy):
    """Its step counter is a global that nobody resets."""
    result = simulate(requests, n_slots, policy)
    return replace(result, n_steps=result.n_steps + next(_calls))


def memorised(requests, n_slots, policy):
    known = {(4, "static"): (7, 10 / 14, 4.0), (4, "continuous"): (7, 10 / 14, 3.5)}
    result = simulate(requests[:4], n_slots, policy)
    n_steps, use, latency = known.get((len(requests), policy), (16, 22 / 64, 6.75))
    return BatchingResult(n_steps, use, latency, result.schedule)


def relabelled(requests, n_slots, policy):
    """Indices in the order of arrival, not of the list."""
    order = sorted(range(len(requests)), key=lambda i: requests[i].arrival)
    return simulate([requests[i] for i in order], n_slots, policy)


def joins_unused_slots(requests, n_slots, policy):
    """A static batch takes others as long as it has slots that nobody used yet."""
    if policy == "continuous":
        return simulate(requests, n_slots, policy)
    waiting, running, rows, n_started = sorted(range(len(requests)), key=lambda i: requests[i].arrival), {}, [], 0
    while waiting or running:
        n_started = n_started if running else 0
        while waiting and n_started < n_slots and requests[waiting[0]].arrival <= len(rows):
            i = waiting.pop(0)
            running[i] = requests[i].n_steps
            n_started += 1
        rows.append(list(running))
        running = {i: left - 1 for i, left in running.items() if left > 1}
    return result_of(rows, requests, n_slots)


def keeps_ended(requests, n_slots, policy):
    """A static batch holds its requests in their slots until the longest ends."""
    cells = simulate(requests, n_slots, policy).schedule
    if policy == "static":
        for t in range(1, len(cells)):
            if (cells[t] >= 0).any() and np.isin(cells[t], [-1, *cells[t - 1]]).all():
                cells[t] = cells[t - 1]
    return result_of(cells.tolist(), requests, n_slots)


def next_batch_joins(requests, n_slots, policy):
    """When the shortest of a batch has ended, the next ones start in its place."""
    if policy == "continuous":
        return simulate(requests, n_slots, policy)
    waiting, running, rows, ended = sorted(range(len(requests)), key=lambda i: requests[i].arrival), {}, [], True
    while waiting or running:
        while ended and waiting and len(running) < n_slots and requests[waiting[0]].arrival <= len(rows):
            i = waiting.pop(0)
            running[i] = requests[i].n_steps
        rows.append(list(running))
        ended = min(running.values(), default=1) == 1
        running = {i: left - 1 for i, left in running.items() if left > 1}
    return result_of(rows, requests, n_slots)


def stops_when_idle(requests, n_slots, policy):
    """Nothing runs, so it is over; those that come later are lost."""
    rows = simulate(requests, n_slots, policy).schedule.tolist()
    begun = next(t for t, row in enumerate(rows) if max(row) >= 0)
    end = next((t for t in range(begun, len(rows)) if max(rows[t]) < 0), len(rows))
    kept = {i for row in rows[:end] for i in row if i >= 0}
    lost = [replace(r, arrival=0) for i, r in enumerate(requests) if i not in kept]
    if not lost:
        return simulate(requests, n_slots, policy)
    cells = np.array(rows[:end])
    return BatchingResult(end, float((cells >= 0).mean()), 1.0, cells)


def from_one(requests, n_slots, policy):
    right = simulate(requests, n_slots, policy)
    return replace(right, schedule=np.where(right.schedule >= 0, right.schedule + 1, -1))


def cuts_the_start(requests, n_slots, policy):
    """Its clock starts when the first request comes."""
    cells = simulate(requests, n_slots, policy).schedule
    return result_of(cells[np.argmax((cells >= 0).any(axis=1)) :].tolist(), requests, n_slots)


def pads_the_end(requests, n_slots, policy):
    right = simulate(requests, n_slots, policy)
    return replace(right, schedule=np.vstack([right.schedule, np.full((3, n_slots), -1)]))


def never_ends(requests, n_slots, policy):
    t = 0
    while any(r.arrival >= 0 for r in requests):
        t += 1


FCFS = "not-fcfs"

SIMULATE = Answers(
    right=[
        by_event_heap,
        by_deque_and_lists,
        last_slot_first,
        another_record,
        object_oriented,
        recursive,
        with_arrays,
        generator_of_steps,
        closes_gaps,
    ],
    wrong={
        # Who runs when.
        "static lets requests join": Wrong(scheduler(joins=lambda policy: "continuous"), "static-joins"),
        "continuous waits for the batch": Wrong(scheduler(joins=lambda policy: "static"), "continuous-waits"),
        "policies swapped": Wrong(
            scheduler(joins=lambda policy: "static" if policy == "continuous" else "continuous"), "policies-swapped"
        ),
        "batch ends with its shortest": Wrong(scheduler(cut=True), "ends-with-shortest"),
        "waits for a full batch": Wrong(scheduler(full=True), "waits-for-full-batch"),
        "last step left out": Wrong(scheduler(more=-1), "prefill-not-counted"),
        "prefill is extra": Wrong(scheduler(more=1), "extra-prefill-step"),
        "arrivals ignored": Wrong(scheduler(may_run=lambda r, t: True), "arrivals-ignored"),
        "arrivals ignored, list order": Wrong(
            scheduler(may_run=lambda r, t: True, key=lambda i, r: i), "arrivals-ignored"
        ),
        "arrival < t": Wrong(scheduler(may_run=lambda r, t: r.arrival < t), "arrival-excluded"),
        "list order": Wrong(scheduler(key=lambda i, r: i), FCFS),
        "list order, head blocks": Wrong(scheduler(key=lambda i, r: i, blocked=True), FCFS),
        "newest first": Wrong(scheduler(key=lambda i, r: (-r.arrival, -i)), FCFS),
        "last of the list first": Wrong(scheduler(key=lambda i, r: -i), FCFS),
        "ties reversed": Wrong(scheduler(key=lambda i, r: (r.arrival, -i)), FCFS),
        "shortest first": Wrong(scheduler(key=lambda i, r: (r.n_steps, r.arrival, i)), FCFS),
        "longest first": Wrong(scheduler(key=lambda i, r: (-r.n_steps, r.arrival, i)), FCFS),
        "sorted by the whole tuple": Wrong(scheduler(key=lambda i, r: (r.arrival, r.n_steps, i)), FCFS),
        "one start per step": Wrong(scheduler(per_step=1), "one-join-per-step"),
        "slot rests a step": Wrong(scheduler(pause=True), "joins-late"),
        "idle steps left out": Wrong(scheduler(skip_idle=True), "idle-steps-left-out"),
        "one slot too few": Wrong(lambda r, n, policy: simulate(r, max(1, n - 1), policy)),
        "indices by arrival": Wrong(relabelled, "renumbered"),
        # Numbers.
        "n_steps without the last": Wrong(numbers(n_steps=lambda c, *_: len(c) - 1), "last-step-not-counted"),
        "n_steps of busy rows": Wrong(
            numbers(n_steps=lambda c, *_: int((c >= 0).any(axis=1).sum())), "idle-steps-left-out"
        ),
        "one at a time": Wrong(lambda r, n, policy: engine(r, n, "continuous", cap=1), "one-at-a-time"),
        "joins slots never used": Wrong(joins_unused_slots, "static-joins"),
        "keeps ended requests": Wrong(keeps_ended, "idle-marked-busy"),
        "stops when idle": Wrong(stops_when_idle, "stops-when-idle"),
        "counts from 1": Wrong(from_one, "one-based"),
        "clock starts at the first request": Wrong(cuts_the_start, "idle-steps-left-out"),
        "idle rows at the end": Wrong(pads_the_end),
        "shortest ends, rest goes on": Wrong(next_batch_joins, "ends-with-shortest"),
        "n_steps summed over requests": Wrong(numbers(n_steps=lambda c, *_: int((c >= 0).sum())), "work-for-steps"),
        "use over requests": Wrong(
            numbers(slot_use=lambda c, n, s, *_: (c >= 0).sum() / (len(c) * n)), "use-over-requests"
        ),
        "use not over slots": Wrong(numbers(slot_use=lambda c, *_: (c >= 0).sum() / len(c)), "use-over-steps"),
        "idle share": Wrong(numbers(slot_use=lambda c, *_: (c < 0).mean()), "idle-share"),
        "use of busy rows": Wrong(
            numbers(slot_use=lambda c, *_: (c[(c >= 0).any(axis=1)] >= 0).mean()), "idle-steps-left-out"
        ),
        "request 0 idle": Wrong(numbers(slot_use=lambda c, *_: (c > 0).mean()), "request-0-idle"),
        "use in percent": Wrong(numbers(slot_use=lambda c, *_: 100 * (c >= 0).mean()), "percent"),
        "latency from zero": Wrong(
            numbers(mean_latency=lambda c, n, s, first, last, arrival: (last + 1).mean()), "latency-from-zero"
        ),
        "latency without the last step": Wrong(
            numbers(mean_latency=lambda c, n, s, first, last, arrival: (last - arrival).mean()), "last-step-not-counted"
        ),
        "waiting time": Wrong(
            numbers(mean_latency=lambda c, n, s, first, last, arrival: (first - arrival).mean()), "wait-only"
        ),
        "time to first token": Wrong(
            numbers(mean_latency=lambda c, n, s, first, last, arrival: (first + 1 - arrival).mean()),
            "latency-to-first-token",
        ),
        "latency from the start": Wrong(
            numbers(mean_latency=lambda c, n, s, first, last, arrival: (last + 1 - first).mean()),
            "latency-from-start",
        ),
        "latency summed": Wrong(
            numbers(mean_latency=lambda c, n, s, first, last, arrival: (last + 1 - arrival).sum()), "sum-for-mean"
        ),
        "worst latency": Wrong(
            numbers(mean_latency=lambda c, n, s, first, last, arrival: (last + 1 - arrival).max()), "max-for-mean"
        ),
        # Shapes, types and state.
        "transposed": Wrong(
            lambda r, n, policy: replace(simulate(r, n, policy), schedule=simulate(r, n, policy).schedule.T),
            "transposed",
        ),
        "no schedule": Wrong(lambda r, n, policy: replace(simulate(r, n, policy), schedule=None)),
        "0 for idle": Wrong(
            lambda r, n, policy: replace(simulate(r, n, policy), schedule=simulate(r, n, policy).schedule.clip(0))
        ),
        "a tuple": Wrong(lambda r, n, policy: (7, 10 / 14, 4.0)),
        "returns None": Wrong(lambda r, n, policy: None, "returns-nothing"),
        "nan": Wrong(numbers(slot_use=lambda *_: float("nan"))),
        "text": Wrong(numbers(n_steps=lambda c, *_: f"{len(c)} steps")),
        "sorts the list in place": Wrong(sorts_in_place, "changes-its-input"),
        "empties the list": Wrong(
            lambda r, n, policy: (simulate(r, n, policy), r.clear())[0],
            "changes-its-input",
        ),
        "remembers": Wrong(Remembers({})),
        "counter never reset": Wrong(shared_clock),
        "memorised": Wrong(memorised),
        "random tie-break": Wrong(
            lambda r, n, policy: simulate(sorted(r, key=lambda _: np.random.random()), n, policy), "global-random-state"
        ),
        "never ends": Wrong(never_ends, "never-returns"),
        "raises": Wrong(lambda r, n, policy: simulate(r, n, policy.upper())),
        "ignores the policy": Wrong(lambda r, n, policy: simulate(r, n, "static"), "continuous-waits"),
        "unlimited slots": Wrong(lambda r, n, policy: simulate(r, len(r), policy)),
        "drops late requests": Wrong(
            lambda r, n, policy: simulate([q for q in r if q.arrival < 9] or [Request(0, 1)], n, policy)
        ),
    },
)

PARTS = {"simulate": SIMULATE}
