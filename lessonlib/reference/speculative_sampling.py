"""Reference answers of exercise 4: speculative sampling."""

from __future__ import annotations

import numpy as np


def speculative_round(p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> list[int]:
    """One round: γ tokens are drafted from q, and one pass of the target accepts, replaces or extends them.

    Each emitted token has exactly the target's distribution (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1;
    Chen et al. 2023, arXiv:2302.01318).

    Args:
        p: target distributions, shape (γ + 1, V); row i belongs to position i, and the last row to the bonus token.
        q: draft distributions, shape (γ, V); γ may be 0.
        rng: where every random number comes from.

    Returns:
        The emitted tokens, 1 to γ + 1 ints: the accepted drafts, then one token more, from the residual of the
        rejected position or, after γ acceptances, from the last row of p.

    Raises:
        ValueError: the shapes do not belong together, or a row is not a distribution (entries ≥ 0 with sum 1).
    """
    p, q = _distributions("p", p), _distributions("q", q)
    gamma, V = len(q), p.shape[1]
    if p.shape[0] != gamma + 1 or q.shape[1] != V:
        raise ValueError(f"p must have one row more than q and as many columns, got shapes {p.shape} and {q.shape}")
    tokens = []
    for i in range(gamma):
        x = int(rng.choice(V, p=q[i]))
        if rng.random() * q[i, x] < p[i, x]:  # strictly: a token with p = 0 is never kept
            tokens.append(x)
            continue
        residual = np.maximum(p[i] - q[i], 0)
        total = residual.sum()
        # Where p and q differ by rounding alone, the residual can be zero: p itself is the limit.
        law = residual / total if total > 0 else p[i]
        return [*tokens, int(rng.choice(V, p=law))]
    return [*tokens, int(rng.choice(V, p=p[gamma]))]


def _distributions(name: str, rows: np.ndarray) -> np.ndarray:
    """The rows as float64 that sum to 1 to the last digit, where they did up to float32 rounding."""
    rows = np.asarray(rows, dtype=float)
    if rows.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, positions and tokens, got shape {rows.shape}")
    sums = rows.sum(axis=1, keepdims=True)
    if not (np.all(rows >= 0) and np.all(np.abs(sums - 1) <= 1e-5)):
        raise ValueError(f"every row of {name} must be a distribution, entries ≥ 0 with sum 1; sums {sums.ravel()}")
    return rows / sums


def expected_tokens(alpha: float, gamma: int) -> float:
    """Mean number of tokens per target pass: 1 + α + α² + … + α^γ (Leviathan et al. 2023, equation 1).

    Args:
        alpha: α, the probability that a draft token is accepted, in [0, 1], the same and independent at each position.
        gamma: γ, drafted tokens per round, at least 0.

    Returns:
        (1 − α^(γ+1)) / (1 − α), and γ + 1 where α = 1.

    Raises:
        ValueError: alpha is outside [0, 1], or gamma is negative or not whole.
    """
    if not 0 <= alpha <= 1 or gamma < 0 or gamma != int(gamma):
        raise ValueError(f"alpha must lie in [0, 1] and gamma be a whole number ≥ 0, got {alpha!r} and {gamma!r}")
    # Tail sums: token j + 1 is emitted if j drafts are accepted. Unlike the quotient, the sum is exact near α = 1.
    return sum(alpha**j for j in range(int(gamma) + 1))


def speedup(alpha: float, gamma: int, c: float) -> float:
    """How many times faster tokens come than from the target alone (Leviathan et al. 2023, theorem 3.8).

    A round costs γ draft steps and one target pass, which is taken to last as long as one decode step.

    Args:
        alpha: α, the acceptance rate, in [0, 1].
        gamma: γ, drafted tokens per round, at least 0.
        c: time of a draft step / time of a target step, at least 0.

    Returns:
        S = E[tokens per target pass] / (1 + γ·c).

    Raises:
        ValueError: c is negative or not a number, or `expected_tokens` refuses alpha or gamma.
    """
    if not c >= 0:
        raise ValueError(f"c must be at least 0, got {c!r}")
    return expected_tokens(alpha, gamma) / (1 + gamma * c)
