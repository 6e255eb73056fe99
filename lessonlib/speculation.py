"""Speculative sampling beyond one round: exact laws, many rounds at once, the best γ, and the gain at a batch size.

`lessonlib.reference.speculative_round` is the exercise's form of one round. (Leviathan et al. 2023,
arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.)
"""

from __future__ import annotations

import numpy as np

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.reference.decode_roofline import decode_step
from lessonlib.reference.speculative_sampling import expected_tokens, speedup
from lessonlib.roofline import decode_bytes, decode_flops, step_seconds


def acceptance(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Probability that a position keeps its draft token: Σ min(p, q) = 1 - TV(p, q).

    Args:
        p, q: laws of target and draft, shape (..., V).

    Returns:
        Shape (...).
    """
    return np.minimum(p, q).sum(axis=-1)


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Law of the token that replaces a rejected one: max(0, p - q), normalised; p where that is zero everywhere.

    Args:
        p, q: laws of target and draft, shape (..., V).
    """
    excess = np.maximum(0, p - q)
    total = excess.sum(axis=-1, keepdims=True)
    return np.where(total > 0, excess / np.where(total > 0, total, 1), p)


def emitted_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Exact law of the token that a position emits: kept drafts, and replacements of rejected ones.

    Computed from the rules of the round, step by step, so that comparing it with p is a test of the theorem.

    Args:
        p, q: laws of target and draft, shape (..., V).

    Returns:
        Shape (..., V).
    """
    ratio = np.divide(p, q, out=np.zeros_like(p, dtype=float), where=q > 0)
    kept = q * np.minimum(1, ratio)
    rejected = 1 - kept.sum(axis=-1, keepdims=True)
    return kept + rejected * residual(p, q)


def simulate_rounds(p: np.ndarray, q: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Many independent rounds of speculative sampling at once.

    Args:
        p: shape (γ + 1, V), the target's laws.
        q: shape (γ, V), the draft's laws.
        n: how many rounds.
        rng: where the randomness comes from.

    Returns:
        The tokens, shape (n, γ + 1); -1 behind the end of a round.
    """
    gamma = len(q)
    tokens = np.full((n, gamma + 1), -1)
    going = np.arange(n)  # the rounds that no rejection has ended
    for i in range(gamma):
        drafted = _draw(q[i], len(going), rng)
        accepted = rng.random(len(going)) * q[i][drafted] < p[i][drafted]
        tokens[going[accepted], i] = drafted[accepted]
        tokens[going[~accepted], i] = _draw(residual(p[i], q[i]), int(np.sum(~accepted)), rng)
        going = going[accepted]
    tokens[going, gamma] = _draw(p[gamma], len(going), rng)
    return tokens


def _draw(law: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n tokens from one law, by inverting its cumulative sum."""
    cumulative = np.cumsum(law)
    return np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")


def best_gamma(alpha: float, c: float, longest: int = 64) -> int:
    """The draft length of the largest speed-up; 0 where no draft pays.

    Args:
        alpha: acceptance rate, from 0 to 1.
        c: draft step time / target step time, at least 0.
        longest: the largest γ to try.
    """
    return max(range(longest + 1), key=lambda gamma: speedup(alpha, gamma, c))


def gain_at_batch(B: int, C: int, alpha: float, gamma: int, target: ModelConfig, draft: ModelConfig, gpu: Gpu) -> float:
    """Speed-up of speculative decoding in a batch, on the roofline: tokens/s with it / tokens/s without.

    The target's pass scores γ + 1 tokens per sequence: it reads weights and caches once, as a plain step does, but
    computes γ + 1 times as much. While the step is bound by memory that costs nothing; above the ridge it does.
    The draft takes γ decode steps of its own.

    Args:
        B: sequences, at least 1.
        C: cached tokens per sequence, at least 1.
        alpha: acceptance rate, from 0 to 1.
        gamma: draft length γ, at least 0.
        target, draft: the two models.
        gpu: where both run.

    Returns:
        The gain: above 1 where speculative decoding is faster.
    """
    n_tokens = B * (gamma + 1)
    verify = step_seconds(decode_bytes(B, C, target), decode_flops(n_tokens, n_tokens * C, target), gpu)
    drafting = gamma * decode_step(B, C, draft, gpu).t_step
    plain = decode_step(B, C, target, gpu).t_step
    return expected_tokens(alpha, gamma) * plain / (verify + drafting)
