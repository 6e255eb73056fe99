"""Figure 5: rounds of speculative decoding, one by one and on average (Leviathan et al. 2023, arXiv:2211.17192)."""

from __future__ import annotations

import math
from collections.abc import Callable
from string import ascii_lowercase, digits
from typing import Any

import numpy as np

from lessonlib.check.harness import Answer, fail
from lessonlib.figures import interactive, still
from lessonlib.reference import expected_tokens, speedup
from lessonlib.reference import speculative_round as reference

TITLE = "Rounds of speculative decoding"
ALPHAS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
GAMMAS = tuple(range(1, 9))
COSTS = tuple(round(0.05 * i, 2) for i in range(11))
N_ROUNDS, N_SETS = 12, 6
START: dict[str, Any] = {"gamma": 4, "alpha": 0.8, "c": 0.15, "sets": 1}
_DIGITS = digits + ascii_lowercase


def laws(alpha: float, gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """Target p, shape (γ + 1, 4), and draft q, shape (γ, 4), with acceptance Σ min(p, q) = α at every position."""
    target, poor = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.0, 0.0, 0.0, 1.0])
    worst = np.minimum(target, poor).sum()
    quality = 1 - (1 - alpha) / (1 - worst)
    return np.tile(target, (gamma + 1, 1)), np.tile(quality * target + (1 - quality) * poor, (gamma, 1))


@interactive.or_message(TITLE, "figures.speculative_rounds()")
def speculative_rounds(speculative_round: Callable[..., list[int]] | None = None) -> interactive.Figure:
    """Twelve simulated rounds at a time, how many drafts are accepted, and the speed-up against the draft length.

    Args:
        speculative_round: the learner's `speculative_round(p, q, rng)`; the reference where it is left out.
    """
    answer = interactive.learners(speculative_round, "speculative_round")
    rounds = _learners_rounds(answer) if answer else _rounds(reference)
    first = rounds[START["alpha"]][START["gamma"]][0]
    return interactive.figure(
        "speculative_rounds",
        title=TITLE,
        idea="Each row is one pass of the target: the drafts it accepted, and one token more. Which γ pays?",
        alt="Twelve rounds as rows of tokens; the chance that at least j drafts are accepted; speed-up against γ.",
        data={
            "state": START,
            "alphas": ALPHAS,
            "gammas": GAMMAS,
            "costs": COSTS,
            "n_sets": N_SETS,
            "yours": answer is not None,
            "off": _off(rounds) if answer else "",
            "rounds": rounds,
        },
        picture=_still(first),
        height=250,
        readings=_readings(first),
        says=_says(first, _off(rounds) if answer else "", yours=answer is not None),
    )


def _rounds(run: Callable[..., Any]) -> dict[float, dict[int, list[str]]]:
    """α -> γ -> tokens per round, a base-36 digit each, in sets of twelve."""
    rounds: dict[float, dict[int, list[str]]] = {}
    for i, alpha in enumerate(ALPHAS):
        rounds[alpha] = {}
        for gamma in GAMMAS:
            p, q = laws(alpha, gamma)
            rng = np.random.default_rng(100 * i + gamma)
            rounds[alpha][gamma] = [
                "".join(_DIGITS[min(35, len(run(p, q, rng)))] for _ in range(N_ROUNDS)) for _ in range(N_SETS)
            ]
    return rounds


def _learners_rounds(answer: Answer) -> dict[float, dict[int, list[str]]]:
    """The same with the learner's function, under one time limit."""
    now: list[tuple[Any, ...]] = [()]

    def run(*args: Any) -> Any:
        now[0] = args
        p, q, rng = args
        tokens = answer.function(p.copy(), q.copy(), rng)
        if not isinstance(tokens, list | tuple | np.ndarray) or np.ndim(tokens) != 1:
            fail(answer.text(args), repr(tokens), "a list of tokens")
        return tokens

    return answer.run(lambda: _rounds(run), lambda: answer.text(now[0]))


def _off(rounds: dict[float, dict[int, list[str]]]) -> str:
    """What is wrong with the numbers of tokens over all rounds that were run, in words; empty where nothing is.

    The alarm is false with probability below 1e-8: the sum over all rounds is nearly normal, and must be six
    standard deviations off.
    """
    total = expectation = variance = 0.0
    for alpha, by_gamma in rounds.items():
        for gamma, words in by_gamma.items():
            lengths = [int(digit, 36) for digit in "".join(words)]
            if not 1 <= min(lengths) <= max(lengths) <= gamma + 1:
                return f"A round of your speculative_round gave {_odd(lengths, gamma)} tokens with γ = {gamma}."
            # Tail sums: E[N²] = Σ (2j + 1) · P(N > j), and P(N > j) = α^j for j = 0 … γ.
            mean = expected_tokens(alpha, gamma)
            square = sum((2 * j + 1) * alpha**j for j in range(gamma + 1))
            total += sum(lengths)
            expectation += len(lengths) * mean
            variance += len(lengths) * (square - mean**2)
    if abs(total - expectation) < 6 * math.sqrt(variance):
        return ""
    share = still.fixed(100 * abs(total / expectation - 1))
    more = "more" if total > expectation else "fewer"
    return f"Over all rounds run here, your speculative_round gives {share}% {more} tokens than expected."


def _odd(lengths: list[int], gamma: int) -> int:
    return next(n for n in lengths if not 1 <= n <= gamma + 1)


# --- the first state, as text and as a still picture ------------------------------------------------------


def _mean(first: str) -> float:
    return sum(int(digit, 36) for digit in first) / len(first)


def _readings(first: str) -> list[tuple[str, str]]:
    alpha, gamma, c = START["alpha"], START["gamma"], START["c"]
    best = max(GAMMAS, key=lambda g: speedup(alpha, g, c))
    return [
        (f"Mean of {len(first)} rounds", still.fixed(_mean(first), 2)),
        ("Expected tokens", still.fixed(expected_tokens(alpha, gamma), 2)),
        ("Speed-up S", f"{still.fixed(speedup(alpha, gamma, c), 2)}×"),
        ("Best γ", str(best)),
    ]


def _says(first: str, off: str, yours: bool) -> str:
    if off:
        return off
    mean, expected = still.fixed(_mean(first), 2), still.fixed(expected_tokens(START["alpha"], START["gamma"]), 2)
    total = sum(int(digit, 36) for digit in first)
    words = f"{len(first)} passes of the target gave {total} tokens: {mean} each, {expected} expected."
    return words + (" Run by your speculative_round." if yours else "")


def _still(first: str) -> str:
    """Rounds of the first set, and the speed-up against γ."""
    gamma = START["gamma"]
    svg = still.text(0, 12, "12 passes", "head")
    svg += still.keys(80, 12, [("blue", "accepted draft"), ("orange", "resampled"), ("green", "bonus")])
    for i, digit in enumerate(first):
        n, y = int(digit, 36), 24 + i * 18
        svg += still.text(0, y + 12, str(i + 1), "soft")
        for j in range(n):
            look = "blue" if j < n - 1 else "green" if n == gamma + 1 else "orange"
            svg += still.rect(22 + j * 26, y, 24, 15, look)
        svg += still.text(26 + n * 26, y + 12, str(n), "bold")
    at = still.linear(1, GAMMAS[-1], 410, 640)
    values = [speedup(START["alpha"], g, START["c"]) for g in GAMMAS]
    marks = still.ticks(max(values), 6)
    up = still.linear(0, marks[-1], 220, 40)
    svg += still.text(370, 12, "Speed-up S against γ", "head")
    for v in marks:
        svg += still.line(410, up(v), 648, up(v), "rule") + still.text(404, up(v) + 4, still.fixed(v, 1), "soft", "end")
    for g in GAMMAS:
        svg += still.text(at(g), 236, str(g), "soft", "middle")
    svg += still.path([(at(g), up(v)) for g, v in zip(GAMMAS, values, strict=True)], "curve")
    return svg + still.dot(at(gamma), up(values[gamma - 1]), 7, "orange dot")
