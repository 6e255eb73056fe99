"""The small records that the exercises take and return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Bound = Literal["memory", "compute"]
Policy = Literal["static", "continuous"]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Roofline estimate of one decode step (exercise 2).

    Args:
        n_bytes: bytes read: the weights once, and every sequence's cache.
        flops: floating-point operations, of weights and attention together.
        t_memory: n_bytes / bandwidth, seconds.
        t_compute: flops / peak_flops, seconds.
        t_step: the longer of the two, seconds.
        tokens_per_s: tokens that the whole batch gains per second.
        bound: which of the two times is the longer, "memory" or "compute".
    """

    n_bytes: float
    flops: float
    t_memory: float
    t_compute: float
    t_step: float
    tokens_per_s: float
    bound: Bound


class OutOfBlocks(RuntimeError):  # noqa: N818 - the exercises' fixed name
    """The pool has too few free blocks for a call; the call changed nothing (exercise 3)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the batching simulator (exercise 5).

    Args:
        arrival: the first step, counted from 0, in which it may run.
        n_steps: steps that it needs, at least 1; the first is its prefill, each gives one token.

    Raises:
        ValueError: arrival is negative, n_steps is below 1, or either is not a whole number.
    """

    arrival: int
    n_steps: int

    def __post_init__(self) -> None:
        for field, least in (("arrival", 0), ("n_steps", 1)):
            value = getattr(self, field)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ValueError(f"{field} must be a whole number of at least {least}, got {value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class BatchingResult:
    """What the batching simulator returns (exercise 5).

    Args:
        n_steps: index of the last busy step, plus 1.
        slot_use: busy cells / (n_steps * n_slots).
        mean_latency: mean over requests of index of the last step + 1 - arrival, in steps.
        schedule: shape (n_steps, n_slots): the index of the request in slot s at step t, or -1.
    """

    n_steps: int
    slot_use: float
    mean_latency: float
    schedule: np.ndarray


class Admission(NamedTuple):
    """What the capstone's admission rule says of one waiting request.

    Args:
        answer: "now" (joins this step), "later" (waits), or "never" (larger than the pool: refuse it).
        n_tokens: tokens of it to compute in this step; 0 unless it joins now.
    """

    answer: Literal["now", "later", "never"]
    n_tokens: int
