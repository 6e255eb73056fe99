"""Reference answer of exercise 5: static and continuous batching, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lessonlib.records import BatchingResult, Policy, Request


def simulate(requests: Sequence[Request], n_slots: int, policy: Policy) -> BatchingResult:
    """Run requests on a number of slots, first come, first served (by arrival, then by place in the list).

    "static": when all slots are empty and requests wait, up to n_slots of them start together, and none joins until
    the longest of them has ended. "continuous": before every step, each free slot takes the next waiting request
    (iteration-level scheduling: Yu et al., "Orca", OSDI 2022).

    Args:
        requests: at least one; each may first run in step `arrival` and needs `n_steps` steps, its prefill included.
        n_slots: requests that can run in one step, at least 1.
        policy: "static" or "continuous".

    Returns:
        n_steps (index of the last busy step + 1), slot_use (busy cells / all cells of those steps), mean_latency
        (mean of index of the last step + 1 - arrival), and schedule, shape (n_steps, n_slots): the index of the
        request in each slot at each step, or -1.

    Raises:
        ValueError: there are no requests, n_slots is below 1, or the policy is another one.
    """
    if not requests:
        raise ValueError(f"there must be at least one request, got {requests!r}")
    if n_slots < 1:
        raise ValueError(f"n_slots must be at least 1, got {n_slots!r}")
    if policy not in ("static", "continuous"):
        raise ValueError(f'policy must be "static" or "continuous", got {policy!r}')
    waiting = sorted(range(len(requests)), key=lambda i: requests[i].arrival)  # a stable sort keeps the list order
    steps_left = [request.n_steps for request in requests]
    latencies = []
    slots = [-1] * n_slots
    schedule: list[list[int]] = []
    while waiting or max(slots) >= 0:
        t = len(schedule)
        if policy == "continuous" or max(slots) == -1:
            for s in range(n_slots):
                if slots[s] == -1 and waiting and requests[waiting[0]].arrival <= t:
                    slots[s] = waiting.pop(0)
        schedule.append(list(slots))
        for s, i in enumerate(slots):
            if i >= 0:
                steps_left[i] -= 1
                if steps_left[i] == 0:
                    latencies.append(t + 1 - requests[i].arrival)
                    slots[s] = -1
    cells = np.array(schedule)
    return BatchingResult(len(cells), float(np.mean(cells >= 0)), float(np.mean(latencies)), cells)
