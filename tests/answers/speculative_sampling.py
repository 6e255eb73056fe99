"""Answers to exercise 4, right and wrong."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from fractions import Fraction

import numpy as np

from lessonlib.reference import expected_tokens, speculative_round, speedup
from tests.answers import Answers, Wrong

# --- speculative_round: right, in other styles and with other orders of random draws --------------------


def round_textbook(p, q, rng):
    """Drafts one by one, with rng.choice and the ratio."""
    tokens = []
    for i in range(len(q)):
        x = rng.choice(q.shape[1], p=q[i])
        if rng.uniform() < p[i][x] / q[i][x]:
            tokens.append(x)
        else:
            residual = np.clip(p[i] - q[i], 0, None)
            tokens.append(rng.choice(q.shape[1], p=residual / residual.sum()))
            break
    else:
        tokens.append(rng.choice(p.shape[1], p=p[-1]))
    return tokens


def round_drafts_first(p, q, rng):
    """All drafts and all uniform draws before any decision; numpy ints in an array."""
    gamma, V = q.shape
    drafts = np.array([rng.choice(V, p=row) for row in q], dtype=int)
    kept = rng.random(gamma) * q[np.arange(gamma), drafts] < p[np.arange(gamma), drafts]
    n = int(np.argmin(kept)) if not kept.all() else gamma
    law = p[n] if n == gamma else np.maximum(0, p[n] - q[n])
    return np.append(drafts[:n], rng.choice(V, p=law / law.sum()))


def round_by_inversion(p, q, rng):
    """No rng.choice: tokens by inverting cumulated sums, in pure Python."""

    def draw(weights):
        cumulated = list(itertools.accumulate(float(w) for w in weights))
        return min(bisect.bisect_right(cumulated, rng.random() * cumulated[-1]), len(weights) - 1)

    out = []
    for p_i, q_i in zip(p, q, strict=False):
        x = draw(q_i)
        if q_i[x] * rng.random() >= p_i[x]:
            return (*out, draw([max(0.0, a - b) for a, b in zip(p_i, q_i, strict=True)]))
        out.append(x)
    return (*out, draw(p[len(q)]))


def round_gumbel(p, q, rng):
    """Tokens as the argmax of log-weights with Gumbel noise."""

    def draw(weights):
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(weights) + rng.gumbel(size=len(weights))))

    tokens = []
    for i, row in enumerate(q):
        x = draw(row)
        if rng.exponential() <= -math.log(min(1.0, p[i, x] / row[x])) if p[i, x] > 0 else True:
            return [*tokens, draw(np.maximum(p[i] - row, 0))]
        tokens.append(x)
    return [*tokens, draw(p[-1])]


def round_recursive(p, q, rng):
    """One position, then the rest."""
    if len(q) == 0:
        return [int(rng.choice(len(p[0]), p=p[0]))]
    x = int(rng.choice(len(q[0]), p=q[0]))
    if rng.random() < min(1, p[0][x] / q[0][x]):
        return [x, *round_recursive(p[1:], q[1:], rng)]
    gap = np.where(p[0] > q[0], p[0] - q[0], 0)
    return [int(rng.choice(len(gap), p=gap / gap.sum()))]


def round_backwards(p, q, rng):
    """Draws in the reverse order: bonus first, residuals for every position, drafts last."""
    gamma, V = q.shape
    last = [int(rng.choice(V, p=p[gamma]))]
    for i in reversed(range(gamma)):
        gap = np.maximum(p[i] - q[i], 0)
        instead = rng.choice(V, p=gap / gap.sum()) if gap.sum() > 0 else rng.choice(V, p=p[i])
        u = rng.random()
        x = rng.choice(V, p=q[i])
        last = [int(x), *last] if u * q[i, x] < p[i, x] else [int(instead)]
    return last


def round_multinomial(p, q, rng):
    """Tokens by multinomial, acceptance by a binomial trial."""
    p, q = p.copy(), q.copy()
    out = np.empty(0, dtype=np.int64)
    for i in range(q.shape[0]):
        x = rng.multinomial(1, q[i]).argmax()
        if rng.binomial(1, min(1.0, p[i, x] / q[i, x])):
            out = np.r_[out, x]
            continue
        p[i] -= np.minimum(p[i], q[i])
        return np.r_[out, rng.multinomial(1, p[i] / p[i].sum()).argmax()]
    return np.r_[out, rng.multinomial(1, p[-1]).argmax()]


def round_spawned(p, q, rng):
    """A generator of its own, seeded from rng."""
    return speculative_round(p, q, np.random.default_rng(rng.integers(2**63)))


def round_by_mixture(p, q, rng):
    """Decides first whether a position keeps, from Σ min(p, q), and then draws from the law that this leaves."""
    tokens = []
    for i, row in enumerate(q):
        overlap = np.minimum(p[i], row)
        if rng.random() >= overlap.sum() - 1e-12:
            gap = p[i] - overlap
            return [*tokens, int(rng.choice(len(row), p=gap / gap.sum()))]
        tokens.append(int(rng.choice(len(row), p=overlap / overlap.sum())))
    return [*tokens, int(rng.choice(p.shape[1], p=p[-1]))]


class Sampler:
    """An object, with a cache of residuals; prints what it does."""

    def __init__(self):
        self.residuals = {}

    def __call__(self, p, q, rng):
        print("round")
        for i in range(len(q)):
            key = (p[i].tobytes(), q[i].tobytes())
            if key not in self.residuals:
                self.residuals[key] = np.maximum(p[i] - q[i], 0) / np.maximum(p[i] - q[i], 0).sum()  # may warn
        n, tokens = 0, []
        while n < len(q):
            tokens.append(int(rng.choice(np.arange(q.shape[1]), p=q[n])))
            if rng.random() > p[n, tokens[-1]] / q[n, tokens[-1]]:
                tokens[-1] = int(rng.choice(q.shape[1], p=self.residuals[p[n].tobytes(), q[n].tobytes()]))
                return tokens
            n += 1
        return [*tokens, np.int32(rng.choice(p.shape[1], p=p[n]))]


# --- speculative_round: wrong ---------------------------------------------------------------------------


def _draw(rng, law):
    return int(rng.choice(len(law), p=law))


def _ratio(p, q, x):
    return p[x] / q[x]


def _residual(p, q):
    gap = np.maximum(p - q, 0)
    return gap / gap.sum()


def wrong_round(
    keep=lambda p, q, x, u: u < p[x] / q[x],
    again=lambda p, q, rng: _draw(rng, _residual(p, q)),
    draft=lambda q, rng: _draw(rng, q),
    bonus=lambda p, q, rng: _draw(rng, p[-1]),
    row=lambda i: i,
    shared=False,
    after="stop",
):
    """A sampler with one rule changed."""

    def answer(p, q, rng):
        tokens, rejected, u = [], False, rng.random()
        for i in range(len(q)):
            u = u if shared else rng.random()
            x = draft(q[i], rng)
            if keep(p[row(i)], q[i], x, u):
                tokens.append(x)
                continue
            rejected = True
            if after == "both":
                tokens.append(x)
            if again is not None:
                tokens.append(again(p[row(i)], q[i], rng))
            if after != "on":
                break
        if (not rejected or after in ("bonus", "on")) and bonus is not None:
            tokens.append(bonus(p, q, rng))
        return tokens

    return answer


def round_bonus_next_row(p, q, rng):
    tokens = speculative_round(p, q, rng)
    return [*tokens, _draw(rng, p[len(tokens)])] if len(tokens) <= len(q) and rng.random() < 0.5 else tokens


def round_no_renormalising(p, q, rng):
    """Inverts the residual's cumulated sum as it stands."""
    return wrong_round(
        again=lambda p, q, rng: int(np.searchsorted(np.cumsum(np.maximum(p - q, 0)), rng.random(), side="right"))
    )(p, q, rng)


def round_no_renormalising_argmax(p, q, rng):
    return wrong_round(again=lambda p, q, rng: int(np.argmax(np.cumsum(np.maximum(p - q, 0)) > rng.random())))(
        p, q, rng
    )


def round_global_state(p, q, rng):
    x = np.random.choice(p.shape[1], p=q[0]) if len(q) else 0
    return [int(x), *speculative_round(p[1:], q[1:], rng)] if len(q) else speculative_round(p, q, rng)


def round_python_random(p, q, rng):
    return wrong_round(keep=lambda p, q, x, u: random.random() < p[x] / q[x])(p, q, rng)


def round_own_generator(p, q, rng):
    return speculative_round(p, q, np.random.default_rng())


def round_fixed_seed(p, q, rng):
    return speculative_round(p, q, np.random.default_rng(0))


def round_copies_rng(p, q, rng):
    state = rng.bit_generator.state
    tokens = speculative_round(p, q, rng)
    rng.bit_generator.state = state
    return tokens


def round_mutates(p, q, rng):
    for i in range(len(q)):
        x = _draw(rng, q[i])
        if rng.random() * q[i, x] >= p[i, x]:
            p[i] = np.maximum(p[i] - q[i], 0)
            return [*range(0), _draw(rng, p[i] / p[i].sum())]
    return [_draw(rng, p[-1])]


def round_slightly_off(p, q, rng):
    """A lenient acceptance, as approximate samplers have it."""
    return wrong_round(keep=lambda p, q, x, u: u < 1.05 * p[x] / q[x] + 0.05)(p, q, rng)


def round_off_by_2_percent(p, q, rng):
    """0.025 of total variation away from p in the first token, wherever it may move."""
    tokens = speculative_round(p, q, rng)
    most = int(np.argmax(p[0]))
    return [(most + 1) % p.shape[1], *tokens[1:]] if tokens[0] == most and rng.random() < 0.025 / p[0][most] else tokens


def round_ignores_later_rows(p, q, rng):
    return speculative_round(np.vstack([np.tile(p[0], (len(q), 1)), p[-1:]]), np.tile(q[:1], (len(q), 1)), rng)


def round_first_call_only(cache={}):  # noqa: B006
    def answer(p, q, rng):
        key = (p.tobytes(), q.tobytes())
        if cache.get("n", 0) > 2000:
            return speculative_round(p, p[:-1], rng)
        cache["n"] = cache.get("n", 0) + 1
        del key
        return speculative_round(p, q, rng)

    return answer


def round_hangs(p, q, rng):
    while True:
        x = _draw(rng, q[0]) if len(q) else 0
        if p[0][x] > 2:
            return [x]


ROUND = Answers(
    right=[
        round_textbook,
        round_drafts_first,
        round_by_inversion,
        round_gumbel,
        round_recursive,
        round_backwards,
        round_multinomial,
        round_spawned,
        round_by_mixture,
        Sampler(),
    ],
    wrong={
        "q / p": Wrong(
            wrong_round(keep=lambda p, q, x, u: u < (q[x] / p[x] if p[x] > 0 else 1)),
            "ratio-inverted",
        ),
        "p > q only": Wrong(wrong_round(keep=lambda p, q, x, u: p[x] > q[x]), "accepts-only-if-p-above-q"),
        "p >= q only": Wrong(wrong_round(keep=lambda p, q, x, u: p[x] >= q[x]), "accepts-only-if-p-above-q"),
        "accepts always": Wrong(wrong_round(keep=lambda p, q, x, u: True), "accepts-always"),
        "u > p / q": Wrong(wrong_round(keep=lambda p, q, x, u: u > p[x] / q[x]), "accept-and-reject-swapped"),
        "accepts with p": Wrong(wrong_round(keep=lambda p, q, x, u: u < p[x]), "accepts-with-p"),
        "p - q": Wrong(wrong_round(again=lambda p, q, rng: _draw(rng, p - q)), "residual-not-clipped"),
        "p - q over its sum": Wrong(
            wrong_round(again=lambda p, q, rng: _draw(rng, (p - q) / (p - q).sum())), "residual-not-clipped"
        ),
        "|p - q|": Wrong(
            wrong_round(again=lambda p, q, rng: _draw(rng, np.abs(p - q) / np.abs(p - q).sum())),
            "residual-not-clipped",
        ),
        "residual as it is": Wrong(
            wrong_round(again=lambda p, q, rng: _draw(rng, np.maximum(p - q, 0))), "residual-not-renormalised"
        ),
        "residual inverted as it is": Wrong(round_no_renormalising, "residual-not-renormalised"),
        "residual by first above u": Wrong(round_no_renormalising_argmax, "residual-not-renormalised"),
        "q - p": Wrong(wrong_round(again=lambda p, q, rng: _draw(rng, _residual(q, p))), "residual-inverted"),
        "resamples from p": Wrong(wrong_round(again=lambda p, q, rng: _draw(rng, p)), "resamples-from-p"),
        "resamples from q": Wrong(wrong_round(again=lambda p, q, rng: _draw(rng, q)), "resamples-from-draft"),
        "argmax of the residual": Wrong(wrong_round(again=lambda p, q, rng: int(np.argmax(p - q))), "argmax-residual"),
        "nothing at a rejection": Wrong(wrong_round(again=None), "no-token-at-rejection"),
        "emits the rejected too": Wrong(wrong_round(after="both"), "emits-the-rejected"),
        "goes on": Wrong(wrong_round(after="on"), "goes-on-after-rejection"),
        "goes on, no bonus": Wrong(wrong_round(after="on", bonus=None), "goes-on-after-rejection"),
        "bonus after a rejection": Wrong(wrong_round(after="bonus"), "bonus-after-rejection"),
        "bonus at times after a rejection": Wrong(round_bonus_next_row),
        "no bonus": Wrong(wrong_round(bonus=None), "no-bonus"),
        "bonus from the last draft row": Wrong(
            wrong_round(bonus=lambda p, q, rng: _draw(rng, q[-1] if len(q) else p[-1])), "bonus-from-draft"
        ),
        "bonus from q[γ]": Wrong(wrong_round(bonus=lambda p, q, rng: _draw(rng, q[len(q)])), "bonus-from-draft"),
        "bonus from p[γ - 1]": Wrong(
            wrong_round(bonus=lambda p, q, rng: _draw(rng, p[len(q) - 1])), "bonus-from-wrong-row"
        ),
        "argmax bonus": Wrong(wrong_round(bonus=lambda p, q, rng: int(np.argmax(p[-1]))), "argmax-bonus"),
        "one draw per round": Wrong(wrong_round(shared=True), "one-draw-per-round"),
        "argmax draft": Wrong(wrong_round(draft=lambda q, rng: int(np.argmax(q))), "argmax-draft"),
        "row i + 1": Wrong(wrong_round(row=lambda i: i + 1), "wrong-row"),
        "first rows only": Wrong(round_ignores_later_rows, "first-row-only"),
        "target only": Wrong(lambda p, q, rng: [_draw(rng, p[0])], "samples-the-target-only"),
        "global random state": Wrong(round_global_state, "global-random-state"),
        "random.random": Wrong(round_python_random, "global-random-state"),
        "own generator": Wrong(round_own_generator, "own-generator"),
        "own seed": Wrong(round_fixed_seed, "ignores-rng"),
        "copies rng": Wrong(round_copies_rng, "copies-rng"),
        "changes p": Wrong(round_mutates, "changes-its-input"),
        "lenient": Wrong(round_slightly_off),
        "2.5% off": Wrong(round_off_by_2_percent),
        "right for a while": Wrong(round_first_call_only()),
        "hangs": Wrong(round_hangs, "never-returns"),
        "returns None": Wrong(lambda p, q, rng: None, "returns-nothing"),
        "returns a count": Wrong(lambda p, q, rng: len(speculative_round(p, q, rng))),
        "returns floats": Wrong(lambda p, q, rng: [float(x) for x in speculative_round(p, q, rng)]),
        "returns text": Wrong(lambda p, q, rng: "".join(map(str, speculative_round(p, q, rng)))),
        "pads with -1": Wrong(lambda p, q, rng: (speculative_round(p, q, rng) + [-1] * len(p))[: len(p)]),
        "fails without a draft": Wrong(lambda p, q, rng: speculative_round(p, q, rng) if len(q) else q[0]),
        "counts tokens from 1": Wrong(lambda p, q, rng: [x + 1 for x in speculative_round(p, q, rng)]),
    },
)

# --- expected_tokens ------------------------------------------------------------------------------------


def tokens_closed_form(alpha, gamma):
    return gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def tokens_sum(alpha, gamma):
    return sum(alpha**j for j in range(gamma + 1))


def tokens_horner(alpha, gamma):
    total = 1.0
    for _ in range(gamma):
        total = 1 + alpha * total
    return total


def tokens_numpy(alpha, gamma):
    return np.power(float(alpha), np.arange(gamma + 1)).sum()


def tokens_polynomial(alpha, gamma):
    return np.polyval(np.ones(gamma + 1), alpha)


def tokens_by_length(alpha, gamma):
    """The mean by its definition: lengths times probabilities."""
    stopped = sum((j + 1) * alpha**j * (1 - alpha) for j in range(gamma))
    return stopped + (gamma + 1) * alpha**gamma


def tokens_fraction(alpha, gamma):
    a = Fraction(alpha)
    return Fraction(gamma + 1) if a == 1 else (1 - a ** (gamma + 1)) / (1 - a)


def tokens_recursive(alpha, gamma):
    return 1 if gamma == 0 else 1 + alpha * tokens_recursive(alpha, gamma - 1)


def tokens_0d(alpha, gamma):
    return np.asarray(np.cumprod([1.0] + [alpha] * gamma).sum())


TOKENS = Answers(
    right=[
        tokens_closed_form,
        tokens_sum,
        tokens_horner,
        tokens_numpy,
        tokens_polynomial,
        tokens_by_length,
        tokens_fraction,
        tokens_recursive,
        tokens_0d,
    ],
    wrong={
        "α^γ": Wrong(lambda a, g: (1 - a**g) / (1 - a) if a < 1 else g, "power-gamma"),
        "α^γ, α = 1 left out": Wrong(lambda a, g: (1 - a**g) / (1 - a), "power-gamma"),
        "accepted drafts only": Wrong(lambda a, g: sum(a**j for j in range(1, g + 1)), "extra-token"),
        "α = 1 divides by zero": Wrong(lambda a, g: (1 - a ** (g + 1)) / (1 - a), "alpha-one"),
        "α = 1 gives nan": Wrong(lambda a, g: float((1 - np.float64(a) ** (g + 1)) / (1 - np.float64(a))), "alpha-one"),
        "α = 1 gives γ": Wrong(lambda a, g: g if a == 1 else tokens_sum(a, g), "alpha-one"),
        "one term too many": Wrong(lambda a, g: sum(a**j for j in range(g + 2)), "one-term-too-many"),
        "1 + γα": Wrong(lambda a, g: 1 + g * a, "goes-on-after-rejection"),
        "γα": Wrong(lambda a, g: g * a, "goes-on-after-rejection"),
        "(γ + 1)α": Wrong(lambda a, g: (g + 1) * a, "goes-on-after-rejection"),
        "endless": Wrong(lambda a, g: 1 / (1 - a) if a < 1 else g + 1, "endless-draft"),
        "numerator": Wrong(lambda a, g: 1 - a ** (g + 1), "numerator-only"),
        "1 - α": Wrong(lambda a, g: tokens_sum(1 - a, g), "rejection-rate"),
        "at most one": Wrong(lambda a, g: min(1.0, tokens_sum(a, g))),
        "rounded": Wrong(lambda a, g: round(tokens_sum(a, g), 2)),
        "whole tokens": Wrong(lambda a, g: int(tokens_sum(a, g))),
        "memorised": Wrong(lambda a, g: {(0.8, 4): 3.3616, (0.6, 3): 2.176}.get((a, g), 1.0)),
        "returns None": Wrong(lambda a, g: None, "returns-nothing"),
        "returns the terms": Wrong(lambda a, g: [a**j for j in range(g + 1)]),
        "simulates": Wrong(lambda a, g: np.mean([np.cumprod(np.random.random(g) < a).sum() + 1 for _ in range(200)])),
    },
)

# --- speedup --------------------------------------------------------------------------------------------


def speedup_direct(alpha, gamma, c):
    return expected_tokens(alpha, gamma) / (1 + gamma * c)


def speedup_closed_form(alpha, gamma, c):
    if alpha == 1:
        return (gamma + 1) / (gamma * c + 1)
    return (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))


def speedup_numpy(alpha, gamma, c):
    return np.float64((alpha ** np.arange(gamma + 1.0)).sum() / (1 + c * gamma))


def speedup_by_times(alpha, gamma, c):
    target_ms = 4.8
    round_ms = target_ms + sum(c * target_ms for _ in range(gamma))
    return target_ms * tokens_horner(alpha, gamma) / round_ms


def speedup_by_rates(alpha, gamma, c):
    return (tokens_by_length(alpha, gamma) / (1 + gamma * c)) / 1.0


def speedup_log(alpha, gamma, c):
    return math.exp(math.log(expected_tokens(alpha, gamma)) - math.log1p(gamma * c))


def speedup_fraction(alpha, gamma, c):
    return tokens_fraction(alpha, gamma) / (1 + gamma * Fraction(c))


def speedup_terms(alpha, gamma, c):
    return sum(alpha**j / (1 + gamma * c) for j in range(gamma + 1))


SPEEDUP = Answers(
    right=[
        speedup_direct,
        speedup_closed_form,
        speedup_numpy,
        speedup_by_times,
        speedup_by_rates,
        speedup_log,
        speedup_fraction,
        speedup_terms,
    ],
    wrong={
        "no draft cost": Wrong(lambda a, g, c: tokens_sum(a, g), "draft-cost"),
        "γ + 1 draft steps": Wrong(lambda a, g, c: tokens_sum(a, g) / (1 + (g + 1) * c), "gamma-plus-one-drafts"),
        "no target cost": Wrong(lambda a, g, c: tokens_sum(a, g) / (g * c) if g * c else 1.0, "target-cost"),
        "one draft step": Wrong(lambda a, g, c: tokens_sum(a, g) / (1 + c), "one-draft-step"),
        "c upside down": Wrong(lambda a, g, c: tokens_sum(a, g) / (1 + g / c) if c else 1.0, "cost-inverted"),
        "target step per token": Wrong(lambda a, g, c: tokens_sum(a, g) / (g + 1 + g * c), "target-steps"),
        "S - 1": Wrong(lambda a, g, c: speedup(a, g, c) - 1, "gain-for-ratio"),
        "1 / S": Wrong(lambda a, g, c: 1 / speedup(a, g, c), "inverse"),
        "α^γ": Wrong(lambda a, g, c: sum(a**j for j in range(g)) / (1 + g * c), "power-gamma"),
        "accepted drafts only": Wrong(lambda a, g, c: sum(a**j for j in range(1, g + 1)) / (1 + g * c), "extra-token"),
        "1 + γα": Wrong(lambda a, g, c: (1 + g * a) / (1 + g * c), "goes-on-after-rejection"),
        "α = 1 divides by zero": Wrong(lambda a, g, c: (1 - a ** (g + 1)) / ((1 - a) * (1 + g * c)), "alpha-one"),
        "at least one": Wrong(lambda a, g, c: max(1.0, speedup(a, g, c))),
        "fixed cost": Wrong(lambda a, g, c: speedup(a, g, 0.15)),
        "rounded": Wrong(lambda a, g, c: round(speedup(a, g, c), 2)),
        "multiplied": Wrong(lambda a, g, c: tokens_sum(a, g) * (1 + g * c)),
        "returns None": Wrong(lambda a, g, c: None, "returns-nothing"),
        "returns text": Wrong(lambda a, g, c: f"{speedup(a, g, c):.2f}x"),
    },
)

PARTS = {"speculative_round": ROUND, "expected_tokens": TOKENS, "speedup": SPEEDUP}
