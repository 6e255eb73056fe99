"""Reference answers of exercise 4: one round of speculative sampling, and what it gains."""

from __future__ import annotations

import numpy as np


def speculative_round(p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> list[int]:
    """One round of speculative sampling: draft γ tokens from q, keep what the target p allows, add one of the target's.

    Draft token i is accepted with probability min(1, p[i] / q[i]). The first rejection ends the round with a token
    from max(0, p[i] - q[i]), normalised. After γ acceptances a bonus token comes from p[γ]. Every emitted token then
    follows p exactly (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318).

    Args:
        p: shape (γ + 1, V): the target's law at each position; rows sum to 1. γ may be 0.
        q: shape (γ, V): the draft's law at each position; rows sum to 1.
        rng: where all randomness comes from.

    Returns:
        The tokens of the round, 1 to γ + 1 ints.

    Raises:
        ValueError: the shapes do not match, or a row has a negative entry or does not sum to 1.
    """
    p, q = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    if p.ndim != 2 or q.shape != (len(p) - 1, p.shape[1]):
        raise ValueError(f"p and q must have shapes (γ + 1, V) and (γ, V), got {p.shape} and {q.shape}")
    for name, rows in (("p", p), ("q", q)):
        sums = rows.sum(axis=1)
        if not ((rows >= 0).all() and (abs(sums - 1) < 1e-4).all()):
            raise ValueError(f"rows of {name} must be probabilities that sum to 1, got {rows} with sums {sums}")

    def draw(weights: np.ndarray) -> int:
        return int(rng.choice(len(weights), p=weights / weights.sum()))

    drafted = [draw(row) for row in q]
    for i, token in enumerate(drafted):
        # Kept only where strictly below p: otherwise a draw of 0 would keep a token that p rules out.
        if rng.random() * q[i, token] >= p[i, token]:
            residual = np.maximum(0, p[i] - q[i])
            # Where p and q differ by rounding alone, the residual may be all zero: p is then the law to draw from.
            return [*drafted[:i], draw(residual if residual.any() else p[i])]
    return [*drafted, draw(p[-1])]


def expected_tokens(alpha: float, gamma: int) -> float:
    """Mean number of tokens that one target pass gives: (1 - α^(γ + 1)) / (1 - α).

    Holds where every draft token is accepted with probability α, independently (Leviathan et al. 2023,
    arXiv:2211.17192, equation 1).

    Args:
        alpha: acceptance rate, from 0 to 1.
        gamma: draft length γ, at least 0.

    Returns:
        Tokens per target pass: 1 for γ = 0, and γ + 1 for α = 1.

    Raises:
        ValueError: alpha is outside [0, 1], or gamma is negative or not whole.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is a probability, from 0 to 1, got {alpha!r}")
    if gamma < 0 or gamma != int(gamma):
        raise ValueError(f"gamma must be a whole number of at least 0, got {gamma!r}")
    # P(at least j drafts accepted) = α^j. As a sum, α = 1 needs no case of its own.
    return sum(float(alpha) ** j for j in range(int(gamma) + 1))


def speedup(alpha: float, gamma: int, c: float) -> float:
    """Speed-up of speculative decoding over plain decoding, S (Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8).

    A round takes the time of one target step and of γ draft steps, 1 + γ·c target steps in all.

    Args:
        alpha: acceptance rate, from 0 to 1.
        gamma: draft length γ, at least 0.
        c: time of a draft step / time of a target step, at least 0.

    Returns:
        S = expected_tokens(α, γ) / (1 + γ·c): below 1 where the draft costs more than it gains.

    Raises:
        ValueError: alpha is outside [0, 1], or gamma or c is negative, or gamma is not whole.
    """
    if not c >= 0:
        raise ValueError(f"c must be at least 0, got {c!r}")
    return expected_tokens(alpha, gamma) / (1 + gamma * c)
