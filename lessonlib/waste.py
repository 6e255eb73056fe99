"""Where KV memory goes: used, reserved for later, never used, or idle in gaps, contiguous against paged.

A small server decodes as many requests as it can hold while others wait. It counts slots, one per token, at every
step until the last request is admitted (Kwon et al. 2023, arXiv:2309.06180, section 3.1 and figure 2, measure the
same on real servers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lessonlib.records import OutOfBlocks


@dataclass(frozen=True, slots=True)
class Shares:
    """Mean shares of a KV memory that is under load.

    Args:
        used: slots that hold a token.
        reserved: slots kept for tokens that their request will write later.
        internal: slots kept for a request that it never uses.
        idle: free slots, while a request waits that does not fit. Between contiguous buffers these are gaps: external
            fragmentation. With blocks they are spare ones, which running requests will need.
        running: mean number of requests at a time.
        preempted: how often a request was stopped and put back into the queue.
    """

    used: float
    reserved: float
    internal: float
    idle: float
    running: float
    preempted: int = 0


def serve_contiguous(prompt: np.ndarray, output: np.ndarray, size: np.ndarray, capacity: int) -> Shares:
    """Give each request one contiguous buffer for its whole life, in the first gap that is large enough.

    Args:
        prompt: prompt lengths in tokens, in the order of arrival; all wait from the start.
        output: output lengths in tokens.
        size: slots to reserve for each request, at least prompt + output.
        capacity: slots in the memory.

    Raises:
        ValueError: a buffer is too small for its request, or larger than the memory.
    """
    if (size < prompt + output).any() or size.max() > capacity:
        raise ValueError("each size must be at least prompt + output, and at most the capacity")
    waiting = deque(range(len(prompt)))
    held: list[tuple[int, int]] = []  # (first slot, request), in order
    age = np.zeros(len(prompt), dtype=np.int64)
    counted: list[tuple[float, ...]] = []
    while True:
        while waiting and (place := _first_gap(held, size, int(size[waiting[0]]), capacity)) is not None:
            held.append((place, waiting.popleft()))
            held.sort()
        if not waiting:
            return _shares(counted, capacity)
        now = np.array([request for _, request in held])
        used, buffers = (prompt + age)[now].sum(), size[now].sum()
        counted.append(
            (used, (output - age)[now].sum(), (size - prompt - output)[now].sum(), capacity - buffers, len(now))
        )
        age[now] += 1
        held = [(place, request) for place, request in held if age[request] < output[request]]


def serve_paged(
    allocator: Callable[[int, int], Any], prompt: np.ndarray, output: np.ndarray, capacity: int, block_size: int
) -> Shares:
    """Give each request blocks as it grows; when none is free, stop the newest and put it back in the queue.

    Args:
        allocator: the class of a block allocator.
        prompt: prompt lengths in tokens, in the order of arrival; all wait from the start.
        output: output lengths in tokens.
        capacity: slots in the memory.
        block_size: slots in a block.

    Raises:
        ValueError: a request is larger than the memory.
    """
    pool = allocator(capacity // block_size, block_size)
    if (prompt + output).max() > capacity // block_size * block_size:
        raise ValueError(f"a request of {(prompt + output).max()} tokens can never run in {capacity} slots")
    waiting = deque(range(len(prompt)))
    running: list[int] = []  # oldest first
    age = np.zeros(len(prompt), dtype=np.int64)
    counted: list[tuple[float, ...]] = []
    preempted = 0
    while True:
        while waiting and -(-(prompt + age)[waiting[0]] // block_size) <= pool.n_free - len(running):
            running.append(waiting.popleft())  # with one block to spare for each that runs
            pool.allocate(running[-1], int((prompt + age)[running[-1]]))
        if not waiting:
            return _shares(counted, capacity, preempted)
        now = np.array(running)
        used = int((prompt + age)[now].sum())
        held = sum(len(pool.block_tables[request]) for request in running) * block_size
        counted.append((used, 0, held - used, capacity - held, len(now)))
        i = 0
        while i < len(running):
            if _append(pool, running[i]):
                age[running[i]] += 1
                i += 1
            else:  # the newest makes room, and waits at the head of the queue
                preempted += 1
                pool.free(running[-1])
                waiting.appendleft(running.pop())
        for request in [r for r in running if age[r] >= output[r]]:
            running.remove(request)
            pool.free(request)


def _append(pool: Any, request: int) -> bool:
    try:
        pool.append(request)
    except OutOfBlocks:
        return False
    return True


def _first_gap(held: list[tuple[int, int]], sizes: np.ndarray, size: int, capacity: int) -> int | None:
    """The first slot of the first gap that is large enough."""
    end = 0
    for place, request in held:
        if place - end >= size:
            return end
        end = place + int(sizes[request])
    return end if capacity - end >= size else None


def _shares(counted: list[tuple[float, ...]], capacity: int, preempted: int = 0) -> Shares:
    if not counted:
        raise ValueError("all requests fit at once: take more requests or a smaller memory")
    used, reserved, internal, idle, running = np.mean(np.array(counted, dtype=float), axis=0).tolist()
    return Shares(used / capacity, reserved / capacity, internal / capacity, idle / capacity, running, preempted)


def share_used_over_lives(prompt: np.ndarray, output: np.ndarray, block_size: int) -> float:
    """Share of the slots in allocated blocks that hold a token, over all steps of all requests."""
    used = held = 0
    for p, o in zip(prompt.tolist(), output.tolist(), strict=True):
        lengths = np.arange(p, p + o)
        used += int(lengths.sum())
        held += int((-(-lengths // block_size) * block_size).sum())
    return used / held
