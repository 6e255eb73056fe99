"""Speculative sampling beyond one round: its exact laws, many rounds at once, and what it gains in a batch.

`lessonlib.reference.speculative_round` is the exercise's own form, one round at a time; these functions hold for
arrays of rounds, and put the rounds on the roofline.
"""

from __future__ import annotations

import numpy as np

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.reference import expected_tokens, speedup
from lessonlib.roofline import decode_bytes, decode_flops, step_seconds, weight_bytes

# --- laws of the output ---------------------------------------------------------------------------------


def acceptance(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Probability that a token drafted from q is accepted: Σ min(p, q) = 1 − TV(p, q), over the last axis."""
    return np.minimum(p, q).sum(axis=-1)


def output_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The exact law of the token that one position emits, computed the way the sampler works.

    It adds the probability of every way to emit x: drafted and kept, or some draft rejected and x drawn from the
    residual. That the sum is p is the theorem; nothing here assumes it.

    Args:
        p: target, shape (…, V).
        q: draft, likewise.

    Returns:
        Shape (…, V).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        keep = np.where(q > 0, np.minimum(1, p / q), 0)
        residual = np.maximum(p - q, 0)
        law = residual / residual.sum(axis=-1, keepdims=True)
    kept = q * keep
    rejected = (q * (1 - keep)).sum(axis=-1, keepdims=True)
    return kept + np.where(rejected > 0, rejected * np.where(np.isfinite(law), law, p), 0)


def mean_tokens(acceptances: np.ndarray) -> float:
    """Mean tokens per round where position i accepts with α_i: 1 + α_1 + α_1·α_2 + …

    Args:
        acceptances: shape (γ,). All equal to α gives `expected_tokens(α, γ)`.
    """
    return 1.0 + float(np.cumprod(acceptances).sum())


# --- many rounds at once --------------------------------------------------------------------------------


def speculative_rounds(p: np.ndarray, q: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n independent rounds of speculative sampling, all positions of all rounds drawn together.

    Args:
        p: target distributions, shape (γ + 1, V).
        q: draft distributions, shape (γ, V).
        n: rounds.
        rng: where every random number comes from.

    Returns:
        Shape (n, γ + 1): the tokens of each round, then −1.
    """
    gamma = len(q)
    tokens = np.full((n, gamma + 1), -1)
    running = np.arange(n)  # rounds without a rejection so far
    for i in range(gamma):
        x = _draw(q[i], len(running), rng)
        kept = rng.random(len(running)) * q[i, x] < p[i, x]
        residual = np.maximum(p[i] - q[i], 0)
        law = residual if residual.sum() > 0 else p[i]
        tokens[running, i] = np.where(kept, x, _draw(law, len(running), rng))
        running = running[kept]
    tokens[running, gamma] = _draw(p[gamma], len(running), rng)
    return tokens


def _draw(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n tokens with probabilities in proportion to weights, by inversion of the cumulated sum."""
    cumulated = np.cumsum(weights)
    # side="right" never gives a token of weight 0, and u < 1 never one past the last of positive weight.
    last = int(np.flatnonzero(weights)[-1])
    return np.minimum(np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right"), last)


# --- how far to draft, and what it gains ----------------------------------------------------------------


def best_gamma(alpha: float, c: float, longest: int = 64) -> int:
    """The draft length with the largest speed-up S at batch size 1, 0 where drafting never pays.

    Args:
        alpha: α, the acceptance rate.
        c: time of a draft step / time of a target step.
        longest: no draft is longer (S has no maximum where α = 1 or c = 0).
    """
    return max(range(longest + 1), key=lambda gamma: speedup(alpha, gamma, c))


def verify_seconds(B: int, C: int, gamma: int, cfg: ModelConfig, gpu: Gpu) -> float:
    """Roofline bound on a pass that scores γ + 1 positions of each of B sequences.

    It moves the bytes of a decode step, since weights and caches are read once, and computes γ + 1 times as much.
    Weights and attention are kernels of their own, one after the other, so each has its own longer of two times. One
    maximum over both together would let the weights' arithmetic hide behind the reading of the caches.

    Args:
        B: sequences.
        C: cached tokens per sequence.
        gamma: γ, drafted tokens per sequence.
        cfg: shape of the target.
        gpu: the GPU.
    """
    n_tokens = B * (gamma + 1)
    through_weights = decode_flops(n_tokens, 0, cfg)
    attention = decode_flops(n_tokens, n_tokens * C, cfg) - through_weights
    caches = decode_bytes(B, C, cfg) - weight_bytes(cfg)
    return step_seconds(weight_bytes(cfg), through_weights, gpu) + step_seconds(caches, attention, gpu)


def batch_gain(alpha: float, gamma: int, B: int, C: int, target: ModelConfig, draft: ModelConfig, gpu: Gpu) -> float:
    """Throughput with speculation over throughput without, for a batch on the roofline.

    A round is γ decode steps of the draft and one verify pass of the target; it gives every sequence
    `expected_tokens(α, γ)` tokens. Without speculation a decode step gives it one. Below 1, speculation costs.

    Args:
        alpha: α, the acceptance rate.
        gamma: γ, drafted tokens per sequence.
        B: sequences.
        C: cached tokens per sequence.
        target: shape of the target; draft: shape of the draft, with a cache of its own.
        gpu: the GPU that runs both.
    """
    plain = verify_seconds(B, C, 0, target, gpu)
    one_draft = verify_seconds(B, C, 0, draft, gpu)
    round_seconds = gamma * one_draft + verify_seconds(B, C, gamma, target, gpu)
    return expected_tokens(alpha, gamma) * plain / round_seconds
