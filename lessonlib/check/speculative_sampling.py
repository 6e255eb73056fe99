"""Checks of exercise 4: speculative sampling.

How `speculative_round` is judged. For given p and q the law of a whole round is known exactly, however it draws its
random numbers: tokens x_1 … x_k that end in a rejection have probability Π min(p, q)(x_i) · max(0, p − q)(x_k), and
rounds without a rejection Π min(p, q)(x_i) · p(bonus). So the check runs many rounds and compares counts with their
laws: each token at each position, given that the round got there; each length; and, where there are few, each whole
round. A count k of n with law π is an alarm where n · KL(k/n, π) > log(2m / a). By Chernoff's bound a right
sampler trips one of m such tests with probability below a, for every n. a sums to less than 1e-6 over all tests.

The precise case takes 21,000 rounds with target probabilities of 0.9 and less (so a standard deviation of a
share of at most 0.3 / √n). There, a sampler that is 0.02 away from p in total variation, at either position, is
caught with probability above 0.999: with three tokens, one token's share is off by the whole 0.02.

The same exact law, with one rule changed, is the law of a mistaken sampler: the mistake that is named is the one
whose law fits the rounds best.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lessonlib import reference
from lessonlib.check.harness import Answer, CheckFailed, Mistake, expect_numbers, fail, part, show

Round = tuple[int, ...]
Rule = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # (p, q, position) -> one number per token

FALSE_ALARM = 1e-6


# --- the law of a round ---------------------------------------------------------------------------------


def _ratio(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.minimum(1, p / q), nan=1.0)


def _normalised(weights: np.ndarray, instead: np.ndarray) -> np.ndarray:
    return weights / weights.sum() if weights.sum() > 0 else instead


def _one_hot(i: int, n: int) -> np.ndarray:
    return np.eye(n)[i]


@dataclass(frozen=True)
class Sampler:
    """The rules of a speculative sampler, right ones unless said otherwise.

    Args:
        keep: probability that a drafted token is accepted.
        again: law of the token drawn at a rejection; None where none is.
        draft: law of the drafted token.
        bonus: law of the token after γ acceptances; None where there is none.
        one_draw: the same uniform draw decides at every position.
        after: what follows a rejection: "nothing"; a bonus token, from the "next row" or the "last row" of p; or the
            remaining "positions", or these "and a bonus".
        rejected_too: the rejected token is emitted before the resampled one.
    """

    keep: Rule = lambda p, q, i: _ratio(p[i], q[i])
    again: Rule | None = lambda p, q, i: _normalised(np.maximum(p[i] - q[i], 0), p[i])
    draft: Rule = lambda p, q, i: q[i]
    bonus: Rule | None = lambda p, q, i: p[i]
    one_draw: bool = False
    after: str = "nothing"
    rejected_too: bool = False

    def law(self, p: np.ndarray, q: np.ndarray) -> dict[Round, float]:
        """Every possible round with its probability."""
        found: dict[Round, float] = defaultdict(float)

        def walk(tokens: Round, i: int, weight: float, top: float, rejected: bool) -> None:
            """All rounds that start with tokens; top: with one draw for all, it is known to be below top."""
            if weight <= 0:
                return
            if i == len(q):
                extend(tokens, None if rejected and self.after == "positions" else self.bonus, i, weight)
                return
            draft, keep = self.draft(p, q, i), self.keep(p, q, i)
            if self.one_draw:
                keep = np.minimum(keep, top) / top
            for x in np.flatnonzero(draft):
                kept = float(keep[x])
                walk((*tokens, int(x)), i + 1, weight * draft[x] * kept, top * kept, rejected)
                if self.rejected_too:
                    extend((*tokens, int(x)), self.again, i, weight * draft[x] * (1 - kept))
            if not self.rejected_too:
                reject(tokens, i, weight * float(draft @ (1 - keep)), top)

        def reject(tokens: Round, i: int, weight: float, top: float) -> None:
            if self.again is None or self.after == "nothing":
                extend(tokens, self.again, i, weight)
                return
            for y, share in enumerate(self.again(p, q, i)):
                if self.after in ("positions", "and a bonus"):
                    walk((*tokens, y), i + 1, weight * share, top, True)
                else:
                    extend((*tokens, y), self.bonus, i + 1 if self.after == "next row" else len(q), weight * share)

        def extend(tokens: Round, rule: Rule | None, i: int, weight: float) -> None:
            if rule is None:
                found[tokens] += weight
                return
            for y, share in enumerate(rule(p, q, i)):
                if weight * share > 0:
                    found[(*tokens, y)] += weight * float(share)

        walk((), 0, 1.0, 1.0, False)
        return {tokens: weight for tokens, weight in found.items() if weight > 0}


RIGHT = Sampler()


def _cut_off(where: int) -> Rule:
    """The residual drawn by inversion without renormalising: what is missing to 1 falls on one token."""

    def again(p: np.ndarray, q: np.ndarray, i: int) -> np.ndarray:
        residual = np.maximum(p[i] - q[i], 0)
        return residual + (1 - residual.sum()) * _one_hot(where, len(residual))

    return again


_WHY_NOT_CLIPPED = (
    "Clip the residual at 0 before it is normalised: max(0, p − q). Where the draft gave too much, nothing is missing."
)
_WHY_NOT_RENORMALISED = (
    "The residual max(0, p − q) sums to the probability of a rejection, not to 1: divide it by its sum."
)
_WHY_GOES_ON = (
    "The drafts after a rejected one were drawn for a text that did not come about: the round ends with the "
    "resampled token."
)
_WHY_BONUS_AFTER = (
    "A rejection ends the round. The bonus token is only for rounds in which every draft was accepted: only then has "
    "the target scored the text before it."
)
_WHY_RESIDUAL = (
    "At a rejection the token comes from max(0, p − q), normalised: the part of p that the draft left unfilled."
)

SAMPLER_MISTAKES: list[tuple[str, str, Sampler]] = [
    (
        "ratio-inverted",
        "The ratio is upside down: keep with probability min(1, p/q). Where the draft gives too much, q > p, some of "
        "its tokens must go.",
        Sampler(keep=lambda p, q, i: _ratio(q[i], p[i])),
    ),
    (
        "accepts-only-if-p-above-q",
        "Tokens with p < q are not lost: they are kept with probability p/q. Compare p/q with a uniform draw.",
        Sampler(keep=lambda p, q, i: (p[i] > q[i]).astype(float)),
    ),
    (
        "accepts-only-if-p-above-q",
        "Tokens with p < q are not lost: they are kept with probability p/q. Compare p/q with a uniform draw.",
        Sampler(keep=lambda p, q, i: (p[i] >= q[i]).astype(float)),
    ),
    (
        "accepts-always",
        "Every draft was kept, so the output follows the draft q. Keep with probability min(1, p/q).",
        Sampler(keep=lambda p, q, i: np.ones_like(p[i])),
    ),
    (
        "accept-and-reject-swapped",
        "The comparison is the wrong way round: keep where u < p/q, reject otherwise.",
        Sampler(keep=lambda p, q, i: 1 - _ratio(p[i], q[i])),
    ),
    (
        "accepts-with-p",
        "The token was kept with probability p. It was drawn with probability q already, so keep it with p/q.",
        Sampler(keep=lambda p, q, i: p[i]),
    ),
    ("residual-not-clipped", _WHY_NOT_CLIPPED, Sampler(again=lambda p, q, i: _normalised(np.abs(p[i] - q[i]), p[i]))),
    ("residual-not-renormalised", _WHY_NOT_RENORMALISED, Sampler(again=_cut_off(-1))),
    ("residual-not-renormalised", _WHY_NOT_RENORMALISED, Sampler(again=_cut_off(0))),
    (
        "residual-inverted",
        _WHY_RESIDUAL + " This is q − p.",
        Sampler(again=lambda p, q, i: _normalised(np.maximum(q[i] - p[i], 0), p[i])),
    ),
    (
        "resamples-from-p",
        _WHY_RESIDUAL + " Drawing from p itself counts the kept part twice.",
        Sampler(again=lambda p, q, i: p[i]),
    ),
    ("resamples-from-draft", _WHY_RESIDUAL + " This is q.", Sampler(again=lambda p, q, i: q[i])),
    (
        "argmax-residual",
        _WHY_RESIDUAL + " Draw from it: its largest entry is not its law.",
        Sampler(again=lambda p, q, i: _one_hot(int(np.argmax(p[i] - q[i])), p.shape[1])),
    ),
    ("no-token-at-rejection", _WHY_RESIDUAL + " Here none was drawn.", Sampler(again=None)),
    (
        "emits-the-rejected",
        "A rejected draft was emitted, and the resampled token after it: it takes the draft's place.",
        Sampler(rejected_too=True),
    ),
    ("goes-on-after-rejection", _WHY_GOES_ON, Sampler(after="positions")),
    ("goes-on-after-rejection", _WHY_GOES_ON, Sampler(after="and a bonus")),
    ("goes-on-after-rejection", _WHY_GOES_ON, Sampler(after="positions", bonus=None)),
    ("bonus-after-rejection", _WHY_BONUS_AFTER, Sampler(after="next row")),
    ("bonus-after-rejection", _WHY_BONUS_AFTER, Sampler(after="last row")),
    (
        "no-bonus",
        "After γ acceptances one token more is free: the same target pass gave p[γ].",
        Sampler(bonus=None),
    ),
    (
        "bonus-from-draft",
        "The bonus token came from the draft: draw it from p[γ], the target's law for the position after the drafts.",
        Sampler(bonus=lambda p, q, i: q[-1]),
    ),
    (
        "bonus-from-wrong-row",
        "The bonus token came from the row of the last draft: position γ has a row of its own, p[γ].",
        Sampler(bonus=lambda p, q, i: p[-2]),
    ),
    (
        "argmax-bonus",
        "The bonus token is drawn from p[γ], not its most probable token.",
        Sampler(bonus=lambda p, q, i: _one_hot(int(np.argmax(p[-1])), p.shape[1])),
    ),
    (
        "one-draw-per-round",
        "One uniform draw decided every position of the round. Each token looks right, but the lengths are not: the "
        "decisions must be independent, so draw afresh at each position.",
        Sampler(one_draw=True),
    ),
    (
        "argmax-draft",
        "The drafts were the most probable tokens of q. The acceptance rule holds for drafts that are drawn from q.",
        Sampler(draft=lambda p, q, i: _one_hot(int(np.argmax(q[i])), q.shape[1])),
    ),
    (
        "wrong-row",
        "Draft i was judged with another row of p: row i of p belongs to row i of q.",
        Sampler(
            keep=lambda p, q, i: _ratio(p[i + 1], q[i]),
            again=lambda p, q, i: _normalised(np.maximum(p[i + 1] - q[i], 0), p[i + 1]),
        ),
    ),
    (
        "first-row-only",
        "Every position used the first rows of p and q: each position has rows of its own.",
        Sampler(
            keep=lambda p, q, i: _ratio(p[0], q[0]),
            again=lambda p, q, i: _normalised(np.maximum(p[0] - q[0], 0), p[0]),
            draft=lambda p, q, i: q[0],
        ),
    ),
    (
        "samples-the-target-only",
        "Each round gave one token from p and no draft was looked at: right in law, and no faster than plain decoding.",
        Sampler(keep=lambda p, q, i: np.zeros_like(p[i]), again=lambda p, q, i: p[i]),
    ),
]


# --- cases ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One (p, q), and how often to run it.

    Args:
        what: what it is about, for messages.
        p: shape (γ + 1, V).
        q: shape (γ, V).
        n: rounds.
        level: probability of a false alarm that its tests share.
    """

    what: str
    p: np.ndarray
    q: np.ndarray
    n: int
    level: float = FALSE_ALARM / 20


def _case(what: str, p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], n: int, **more: Any) -> Case:
    rows = np.array(p, dtype=float)
    return Case(what, rows, np.array(q, dtype=float).reshape(len(q), rows.shape[1]), n, **more)


def cases(seed: int) -> list[Case]:
    """The cases of a check: small ones first that tell the mistakes apart, then the precise one.

    Their levels sum to 0.5e-6 + 9 · 0.05e-6, below 1e-6.
    """
    rng = np.random.default_rng(seed)
    some = rng.dirichlet(np.ones(6), 9)
    skewed = np.array([[0.9, 0.06, 0.04], [0.04, 0.9, 0.06]])[:, rng.permutation(3)]
    drafts = 0.96 * skewed[:1] + 0.04 * skewed[:1, [1, 2, 0]]
    return [
        _case("the two-token example", [[0.6, 0.4], [0.3, 0.7]], [[0.9, 0.1]], 1500),
        _case(
            "different rows at each position",
            [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.1, 0.6, 0.3]],
            [[0.2, 0.3, 0.5], [0.45, 0.35, 0.2]],
            2000,
        ),
        _case(
            "zeros in p and in q",
            [[0.0, 0.6, 0.25, 0.15], [0.4, 0.0, 0.25, 0.35], [0.5, 0.0, 0.5, 0.0]],
            [[0.3, 0.4, 0.3, 0.0], [0.4, 0.2, 0.4, 0.0]],
            1500,
        ),
        _case("p = q", [[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]], [[0.7, 0.3], [0.2, 0.8]], 500),
        _case("disjoint supports", [[0.0, 0.0, 0.4, 0.6], [0.5, 0.5, 0, 0]], [[0.3, 0.7, 0.0, 0.0]], 500),
        _case("a draft that is sure and wrong", [[0.0, 0.7, 0.3]] * 3, [[1.0, 0.0, 0.0]] * 2, 400),
        _case("a draft that is sure and right", [[1.0, 0.0]] * 4, [[1.0, 0.0]] * 3, 20),
        _case("random rows", some[:5].tolist(), (0.6 * some[:4] + 0.4 * some[5:]).tolist(), 1000),
        _case("no draft at all, γ = 0", [[0.2, 0.5, 0.3]], [], 500),
        Case("the precise case", skewed, drafts, 21_000, FALSE_ALARM / 2),
    ]


# --- reading results ------------------------------------------------------------------------------------


def _as_round(result: Any, gamma: int, V: int) -> Round:
    """The result as a tuple of ints; ValueError with the reason, and the slug if it has one, where it is not one."""
    if result is None:
        raise ValueError("a list of tokens", ("returns-nothing", "The function ends without `return`."))
    if isinstance(result, np.ndarray):
        result = result.tolist() if result.ndim == 1 else result
    if not isinstance(result, list | tuple):
        raise ValueError("a list of tokens", None)
    tokens = []
    for x in result:
        x = x.item() if isinstance(x, np.integer) or (isinstance(x, np.ndarray) and x.ndim == 0) else x
        if isinstance(x, bool) or not isinstance(x, numbers.Integral):
            raise ValueError(f"a list of ints: {show(x)} is {type(x).__name__}", None)
        tokens.append(int(x))
        if not 0 <= tokens[-1] < V:
            mistake = ("residual-not-renormalised", _WHY_NOT_RENORMALISED) if tokens[-1] == V else None
            raise ValueError(f"tokens from 0 to {V - 1}", mistake)
    if not tokens and gamma:
        raise ValueError("at least one token", ("no-token-at-rejection", _WHY_RESIDUAL + " Here none was drawn."))
    if not 1 <= len(tokens) <= gamma + 1:
        raise ValueError(f"1 to {gamma + 1} tokens, one more than accepted drafts", None)
    return tuple(tokens)


def _text(answer: Answer, case: Case, n: int = 1) -> str:
    times = f"{n:,} times " if n > 1 else ""
    rows = [f"    {name} = {_rows(value)}" for name, value in (("p", case.p), ("q", case.q))]
    return "\n".join([f"{times}{answer.name}(p, q, rng)   ({case.what})", *rows])


def _rows(rows: np.ndarray) -> str:
    if not len(rows):
        return f"np.zeros({rows.shape})"
    return "[" + ", ".join("[" + ", ".join(f"{x:.4g}" for x in row) + "]" for row in rows) + "]"


_ERRORS = [
    ("non-negative", "residual-not-clipped", _WHY_NOT_CLIPPED),
    ("contain nan", "residual-not-clipped", _WHY_NOT_CLIPPED),
    ("sum to 1", "residual-not-renormalised", _WHY_NOT_RENORMALISED),
]


def _error(failure: CheckFailed, case: Case) -> CheckFailed:
    """The failure of a call that raised, with its mistake where the error gives it away."""
    if failure.mistake is not None:
        return failure
    known = [(slug, why) for text, slug, why in _ERRORS if text in str(failure).lower()]
    if f"out of bounds for axis 0 with size {len(case.q)}" in str(failure):
        known.append(("bonus-from-draft", "q has no row γ: the bonus token comes from p[γ]."))
    if not known:
        return failure
    slug, why = known[0]
    return CheckFailed(f"{failure}\n\nLikely mistake ({slug}): {why}", slug)


class Rounds:
    """The rounds of an answer, case by case, as far as they were run."""

    def __init__(self, answer: Answer, seed: int) -> None:
        self.answer, self.seed = answer, seed
        self.counts: dict[str, Counter[Round]] = {}

    def run(self, case: Case) -> Counter[Round]:
        """Run the rounds of a case, and insist on tokens."""
        answer, gamma, V = self.answer, len(case.q), case.p.shape[1]
        try:
            results = answer.repeat(case.n, case.p, case.q, seed=self.seed)
        except CheckFailed as failure:
            raise _error(failure, case) from None
        counts: Counter[Round] = Counter()
        for result in results:
            try:
                counts[_as_round(result, gamma, V)] += 1
            except ValueError as error:
                what, mistake = error.args
                fail(_text(answer, case), show(result), what, mistake or self.diagnose([(case, results)]))
        self.counts[case.what] = counts
        return counts

    def diagnose(self, raw: Sequence[tuple[Case, Sequence[Any]]] = ()) -> tuple[str, str] | None:
        """The mistake whose law fits the rounds of the telling cases best, if one fits them.

        Args:
            raw: results that are not even rounds, with their case.
        """
        seen = [(case, Counter(map(_loosely, results))) for case, results in raw]
        for case in cases(self.seed)[:3]:
            if case.what not in self.counts and not raw:
                try:
                    self.run(case)
                except CheckFailed:
                    continue
            if case.what in self.counts:
                seen.append((case, self.counts[case.what]))
        best, best_fit = None, -math.inf
        for slug, why, sampler in SAMPLER_MISTAKES:
            fit = sum(_fit(counts, sampler.law(case.p, case.q)) for case, counts in seen)
            if fit > best_fit:
                best, best_fit = (slug, why), fit
        return best


def _loosely(result: Any) -> Round:
    try:
        return tuple(int(x) for x in result)
    except (TypeError, ValueError):
        return (-1,)


def _fit(counts: Counter[Round], law: dict[Round, float]) -> float:
    """Log-likelihood of the counts; −inf where they cannot have come from the law (1 in a million is not enough)."""
    n = sum(counts.values())
    if any(tokens not in law for tokens in counts):
        return -math.inf
    if any(_evidence(counts[tokens], n, share) > math.log(2 * len(law) / 1e-4) for tokens, share in law.items()):
        return -math.inf
    return sum(k * math.log(law[tokens]) for tokens, k in counts.items())


# --- comparing with the law -----------------------------------------------------------------------------


def _evidence(k: int, n: int, share: float) -> float:
    """n · KL(k/n, share): a count this far off has probability below exp(−this), to either side (Chernoff)."""
    total = 0.0
    for count, expected in ((k, n * share), (n - k, n * (1 - share))):
        if count:
            total += count * math.log(count / expected) if expected > 0 else math.inf
    return total


@dataclass(frozen=True)
class Test:
    """A count with the law that it must have: k of n with probability share each."""

    what: str
    k: int
    n: int
    share: float

    @property
    def evidence(self) -> float:
        return _evidence(self.k, self.n, self.share)


def tests_of(case: Case, counts: Counter[Round]) -> list[Test]:
    """All counts of a case that are compared with their laws."""
    law = RIGHT.law(case.p, case.q)
    n = sum(counts.values())
    tests = []
    for i, row in enumerate(case.p):
        here = Counter[int]()
        for tokens, k in counts.items():
            if len(tokens) > i:
                here[tokens[i]] += k
        reached = sum(here.values())
        expected = sum(share for tokens, share in law.items() if len(tokens) > i)
        if 0 < i:
            tests.append(Test(f"rounds of more than {i} token{'s' * (i > 1)}", reached, n, min(1.0, expected)))
        tests += [
            Test(f"token {x} at position {i}, of the rounds that got there", here[x], reached, float(share))
            for x, share in enumerate(row)
        ]
    if len(law) <= 60 and case.n < 10_000:
        tests += [Test(f"rounds {list(tokens)}", counts[tokens], n, min(1.0, share)) for tokens, share in law.items()]
        impossible = [tokens for tokens in counts if tokens not in law]
        example = f", such as {list(impossible[0])}" if impossible else ""
        tests.append(Test(f"rounds that p and q rule out{example}", sum(counts[t] for t in impossible), n, 0.0))
    return tests


def limit(case: Case, n_tests: int) -> float:
    """The evidence that makes an alarm, so that the case's tests together give a false one below its level."""
    return math.log(2 * n_tests / case.level)


def _compare(answer: Answer, case: Case, rounds: Rounds) -> None:
    tests = tests_of(case, rounds.run(case))
    alarms = [test for test in tests if test.n and test.evidence > limit(case, len(tests))]
    if not alarms:
        return
    test = alarms[0]
    fail(
        _text(answer, case, case.n),
        f"{test.what}: {test.k:,} of {test.n:,}, a share of {test.k / test.n:.4f}",
        f"a share of {test.share:.4f} (chance alone: less than 1 in a million)",
        rounds.diagnose(),
    )


# --- the checks -----------------------------------------------------------------------------------------


def _check_calls(answer: Answer, case: Case, seed: int) -> None:
    """Single calls, so that changed arguments and the global random state are seen; then one seed, twice."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        try:
            result = answer(case.p, case.q, rng)
        except CheckFailed as failure:
            raise _error(failure, case) from None
        try:
            _as_round(result, len(case.q), case.p.shape[1])
        except ValueError as error:
            what, mistake = error.args
            fail(_text(answer, case), show(result), what, mistake)


def _check_seeds(answer: Answer, case: Case, seed: int) -> None:
    def rounds(seed: int) -> list[Round]:
        return [_loosely(result) for result in answer.repeat(60, case.p, case.q, seed=seed)]

    first, again, other = rounds(seed), rounds(seed), rounds(seed + 1)
    text = _text(answer, case, 60)
    if first != again:
        fail(
            text + ", twice from one seed",
            "two different results",
            "the same tokens, since every random number comes from rng",
            ("own-generator", "Some random number came from elsewhere: use rng alone, so that a run can be repeated."),
        )
    if first == other and len({tuple(rounds(seed + i)) for i in range(2, 16)}) == 1:
        fail(
            text + ", from two seeds",
            "the same tokens",
            "other tokens from another seed",
            ("ignores-rng", "The random numbers do not come from rng: use the generator that is passed in."),
        )
    if len(set(first)) == 1:
        fail(
            text,
            "60 times the same round",
            "different rounds, since rng moves on from call to call",
            (
                "copies-rng",
                "rng was copied or started again, so each call repeats the last one: draw from rng itself.",
            ),
        )


@part("speculative_round")
def speculative_round(answer: Answer, seed: int) -> str:
    """The law of a round: of its tokens, its length and the whole of it."""
    all_cases = cases(seed)
    _check_calls(answer, all_cases[1], seed)
    _check_seeds(answer, all_cases[1], seed)
    answer.seconds = 20.0  # for thousands of rounds at once
    rounds = Rounds(answer, seed)
    for case in all_cases:
        _compare(answer, case, rounds)
    n = sum(case.n for case in all_cases)
    return f"{n:,} rounds follow the target's law, in tokens and lengths; same seed, same tokens."


_tokens = reference.expected_tokens

TOKENS_MISTAKES = [
    Mistake(
        "power-gamma",
        "α^γ stands where α^(γ + 1) belongs: a round gives up to γ + 1 tokens, so the sum 1 + α + … + α^γ has γ + 1 "
        "terms.",
        lambda alpha, gamma: sum(alpha**j for j in range(gamma)),
    ),
    Mistake(
        "extra-token",
        "This counts accepted drafts only: every target pass gives one token more, resampled or bonus.",
        lambda alpha, gamma: sum(alpha**j for j in range(1, gamma + 1)),
    ),
    Mistake(
        "one-term-too-many",
        "One term too many: 1 + α + … + α^γ, so that α = 1 gives γ + 1.",
        lambda alpha, gamma: sum(alpha**j for j in range(gamma + 2)),
    ),
    Mistake(
        "goes-on-after-rejection",
        "γ·α counts every accepted draft, also those behind a rejection. Draft j counts only if all j are accepted: "
        "α^j.",
        lambda alpha, gamma: 1 + gamma * alpha,
    ),
    Mistake(
        "goes-on-after-rejection",
        "γ·α counts every accepted draft, also those behind a rejection. Draft j counts only if all j are accepted: "
        "α^j. And every pass gives one token more.",
        lambda alpha, gamma: gamma * alpha,
    ),
    Mistake(
        "goes-on-after-rejection",
        "(γ + 1)·α lets drafts behind a rejection count, and the last token need no acceptance: sum α^j for j = 0 … γ.",
        lambda alpha, gamma: (gamma + 1) * alpha,
    ),
    Mistake(
        "endless-draft",
        "1 / (1 − α) is the mean for drafts without end: this round stops after γ drafts and a bonus token.",
        lambda alpha, gamma: 1 / (1 - alpha),
    ),
    Mistake(
        "numerator-only",
        "The division by 1 − α is missing: 1 + α + … + α^γ = (1 − α^(γ+1)) / (1 − α).",
        lambda alpha, gamma: 1 - alpha ** (gamma + 1),
    ),
    Mistake(
        "rejection-rate",
        "The rejection rate was taken for α: α is the probability that a draft is accepted.",
        lambda alpha, gamma: sum((1 - alpha) ** j for j in range(gamma + 1)),
    ),
    Mistake(
        "last-term-only",
        "This is one term of the sum: add α^j for j = 0 … γ.",
        lambda alpha, gamma: alpha ** (gamma + 1) / (1 - alpha),
    ),
]

ALPHA_ONE = (
    "alpha-one",
    "At α = 1 the quotient is 0 / 0. Every draft is accepted there, so the answer is γ + 1.",
)


def _at_alpha_one(answer: Answer, case: tuple[Any, ...], right: Callable[..., float]) -> None:
    """Insist on the value at α = 1, where the closed form divides by zero."""
    try:
        got = answer.number(*case)
    except CheckFailed as failure:
        if failure.mistake is None:
            failure = CheckFailed(f"{failure}\n\nLikely mistake ({ALPHA_ONE[0]}): {ALPHA_ONE[1]}", ALPHA_ONE[0])
        raise failure from None
    if not math.isclose(got, right(*case), rel_tol=1e-9):
        fail(answer.text(case), show(got), show(right(*case)), ALPHA_ONE)


def _pairs(seed: int) -> list[tuple[float, int]]:
    rng = np.random.default_rng(seed)
    fixed = [(0.8, 4), (0.6, 3), (0.8, 5), (0.8, 1), (0.3, 8), (0.0, 4), (0.9, 0), (0.0, 0), (0.5, 30), (0.99, 100)]
    return fixed + [(float(rng.uniform(0.05, 0.98)), int(rng.integers(0, 20))) for _ in range(20)]


@part("expected_tokens")
def expected_tokens(answer: Answer, seed: int) -> str:
    """The golden values, α from 0 to 1, and γ = 0."""
    pairs = _pairs(seed)
    expect_numbers(answer, pairs, _tokens, TOKENS_MISTAKES, what="a number of tokens")
    for alpha, gamma in ((1.0, 4), (1, 0), (1.0, 7)):
        _at_alpha_one(answer, (alpha, gamma), _tokens)
    return f"{len(pairs) + 3} cases right, α = 0, α = 1 and γ = 0 among them."


def _with_tokens(mistake: Mistake) -> Mistake:
    """The speed-up of a learner whose expected_tokens has that mistake."""
    return Mistake(
        mistake.slug,
        "The tokens per target pass are wrong. " + mistake.why,
        lambda alpha, gamma, c: mistake.wrong(alpha, gamma) / (1 + gamma * c),
    )


SPEEDUP_MISTAKES = [
    Mistake(
        "draft-cost",
        "The draft's cost is left out: a round takes one target step and γ draft steps, 1 + γ·c.",
        lambda alpha, gamma, c: _tokens(alpha, gamma),
    ),
    Mistake(
        "gamma-plus-one-drafts",
        "A round has γ draft steps, not γ + 1: the last token comes from the target's own pass.",
        lambda alpha, gamma, c: _tokens(alpha, gamma) / (1 + (gamma + 1) * c),
    ),
    Mistake(
        "target-cost",
        "The target's pass is left out of the time: a round takes 1 + γ·c target steps.",
        lambda alpha, gamma, c: _tokens(alpha, gamma) / (gamma * c),
    ),
    Mistake(
        "one-draft-step",
        "One draft step was counted: drafting is sequential, so γ tokens take γ steps.",
        lambda alpha, gamma, c: _tokens(alpha, gamma) / (1 + c),
    ),
    Mistake(
        "cost-inverted",
        "c is the time of a draft step over that of a target step: a draft step takes c target steps, not 1 / c.",
        lambda alpha, gamma, c: _tokens(alpha, gamma) / (1 + gamma / c),
    ),
    Mistake(
        "target-steps",
        "The target was charged a step per token: one pass scores all γ + 1 positions.",
        lambda alpha, gamma, c: _tokens(alpha, gamma) / (gamma + 1 + gamma * c),
    ),
    Mistake(
        "gain-for-ratio",
        "This is the gain S − 1: the speed-up of plain decoding over itself is 1.",
        lambda alpha, gamma, c: _tokens(alpha, gamma) / (1 + gamma * c) - 1,
    ),
    Mistake(
        "inverse",
        "This is time per token, 1 / S: a speed-up above 1 means faster.",
        lambda alpha, gamma, c: (1 + gamma * c) / _tokens(alpha, gamma),
    ),
    *map(_with_tokens, TOKENS_MISTAKES),
]


@part("speedup")
def speedup(answer: Answer, seed: int) -> str:
    """The table of the lesson, free drafts (c = 0), drafts as slow as the target, and α = 1."""
    rng = np.random.default_rng(seed + 1)
    costs = [0.15, 0.1, 0.15, 0.15, 0.05, 0.5, 0.2, 0.0, 0.0, 1.0]
    cases = [
        (alpha, gamma, costs[i] if i < len(costs) else float(rng.uniform(0.01, 0.6)))
        for i, (alpha, gamma) in enumerate(_pairs(seed))
    ]
    expect_numbers(answer, cases, reference.speedup, SPEEDUP_MISTAKES, what="a number, times as fast")
    for alpha, gamma, c in ((1.0, 4, 0.15), (1, 3, 0.0)):
        _at_alpha_one(answer, (alpha, gamma, c), reference.speedup)
    return f"{len(cases) + 2} cases right, c = 0, α = 1 and γ = 0 among them."
