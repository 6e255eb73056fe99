"""Answers that learners hand in, right and wrong, per exercise part: what the checks are tested with.

Each module has `PARTS: dict[str, Answers]`. The reference answer and the unfinished starter are added by the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Wrong:
    """A wrong answer, and the slug that the check must name (None: caught is enough)."""

    answer: Any
    mistake: str | None = None


@dataclass(frozen=True)
class Answers:
    """The answers of one part.

    Args:
        right: right ones, each in a style of its own.
        wrong: wrong ones, by a name that says what is wrong.
        least_right: how many styles there must be at least.
    """

    right: list[Callable[..., Any]] = field(default_factory=list)
    wrong: dict[str, Wrong] = field(default_factory=dict)
    least_right: int = 8


def all_parts() -> dict[str, Answers]:
    """Every part of the course with its answers."""
    from tests.answers import batching, capstone, decode_roofline, kv_cache, paged_memory, speculative_sampling

    modules = (kv_cache, decode_roofline, paged_memory, speculative_sampling, batching, capstone)
    return {part: answers for module in modules for part, answers in module.PARTS.items()}
