"""What the engine measures: every step, and what users feel of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lessonlib.serving import request


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step.

    Args:
        seconds: of the whole step.
        schedule_seconds: of scheduling within it.
        n_decode: sequences that gained tokens from one new token (and its drafts).
        n_prefill_tokens: prompt tokens computed, those computed again included.
        n_context: tokens that were attended to, over all sequences.
        n_running, n_waiting: sequences after the step was scheduled.
        kv_use: blocks in use / blocks in the pool.
        n_admitted_tokens, n_cached_tokens: tokens of the sequences that started, and those the prefix cache had.
        n_new_tokens: tokens generated.
        n_drafted, n_accepted: drafts proposed and kept.
        n_preempted: sequences that lost their blocks.
    """

    seconds: float
    schedule_seconds: float
    n_decode: int
    n_prefill_tokens: int
    n_context: int
    n_running: int
    n_waiting: int
    kv_use: float
    n_admitted_tokens: int
    n_cached_tokens: int
    n_new_tokens: int
    n_drafted: int
    n_accepted: int
    n_preempted: int


@dataclass(slots=True)
class Metrics:
    """Records of all steps, and of all finished requests. Times in seconds.

    Args:
        steps: one record per step.
        ttft: time to first token of each finished sequence.
        tpot: mean time per token after the first, of each finished sequence with two tokens or more.
    """

    steps: list[StepRecord] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)

    def add(self, record: StepRecord, sequences: Sequence[request.Sequence]) -> None:
        """Take in a step, and the sequences that gained tokens in it."""
        self.steps.append(record)
        for seq in sequences:
            times = seq.token_times
            if seq.finish_reason is not None and times:
                self.ttft.append(times[0] - seq.arrived)
            if seq.finish_reason is not None and len(times) > 1:
                self.tpot.append((times[-1] - times[0]) / (len(times) - 1))

    def total(self, name: str) -> float:
        """Sum of a field over all steps."""
        return sum(getattr(step, name) for step in self.steps)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of engine time."""
        return self._ratio("n_new_tokens", "seconds")

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the tokens of started sequences that the prefix cache had."""
        return self._ratio("n_cached_tokens", "n_admitted_tokens")

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafts / proposed drafts."""
        return self._ratio("n_accepted", "n_drafted")

    def summary(self) -> dict[str, float]:
        """The numbers to look at first; times in seconds."""
        return {
            "steps": len(self.steps),
            "seconds": self.total("seconds"),
            "tokens_per_s": self.tokens_per_s,
            "ttft_mean": float(np.mean(self.ttft)) if self.ttft else 0.0,
            "ttft_p99": float(np.quantile(self.ttft, 0.99)) if self.ttft else 0.0,
            "tpot_mean": float(np.mean(self.tpot)) if self.tpot else 0.0,
            "kv_use_max": max((step.kv_use for step in self.steps), default=0.0),
            "prefix_hit_rate": self.prefix_hit_rate,
            "acceptance_rate": self.acceptance_rate,
            "preemptions": self.total("n_preempted"),
        }

    def _ratio(self, part: str, whole: str) -> float:
        return self.total(part) / self.total(whole) if self.total(whole) else 0.0
