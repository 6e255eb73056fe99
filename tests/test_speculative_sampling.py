"""Exercise 4: golden values, the theorem, and what the statistical check promises."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessonlib.check import CheckFailed
from lessonlib.check import speculative_sampling as judge
from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.reference import expected_tokens, speculative_round, speedup
from lessonlib.speculation import acceptance, batch_gain, best_gamma, mean_tokens, output_law, speculative_rounds

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["speculative"]
LLAMA, SMALL, H100 = MODELS["Llama-3-8B"], MODELS["Llama-3.2-1B"], GPUS["H100-SXM"]


def test_two_token_example() -> None:
    example = GOLDEN["example"]
    p, q = np.array(example["p"]), np.array(example["q"])
    assert np.minimum(p, q) == pytest.approx(example["kept"])
    assert 1 - acceptance(p, q) == pytest.approx(example["p_reject"])
    assert acceptance(p, q) == pytest.approx(example["acceptance"])
    assert output_law(p, q) == pytest.approx(p)


def test_expected_tokens_and_speedup_golden() -> None:
    assert expected_tokens(0.8, 4) == pytest.approx(GOLDEN["expected_tokens"]["alpha=0.8,gamma=4"])
    assert expected_tokens(0.6, 3) == pytest.approx(GOLDEN["expected_tokens"]["alpha=0.6,gamma=3"])
    assert speedup(0.6, 3, 0.1) == pytest.approx(GOLDEN["speedup"]["alpha=0.6,gamma=3,c=0.1"])
    for row in GOLDEN["table_alpha_0.8_c_0.15"]:
        assert expected_tokens(0.8, row["gamma"]) == pytest.approx(row["tokens"])
        assert speedup(0.8, row["gamma"], 0.15) == pytest.approx(row["speedup"])
    assert best_gamma(0.8, 0.15) == GOLDEN["best_gamma_alpha_0.8_c_0.15"]


def test_table_1_of_leviathan_et_al() -> None:
    """α = 0.8, γ = 5: 3.69 tokens per pass, 1.63 times the operations (with a draft that costs nothing)."""
    assert expected_tokens(0.8, 5) == pytest.approx(3.69, abs=0.005)
    assert (5 + 1) / expected_tokens(0.8, 5) == pytest.approx(1.63, abs=0.005)


@given(st.floats(0, 0.999), st.integers(0, 40))
def test_expected_tokens_is_the_closed_form(alpha: float, gamma: int) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha), rel=1e-11)


@given(st.integers(0, 40))
def test_expected_tokens_at_the_ends(gamma: int) -> None:
    assert expected_tokens(1, gamma) == expected_tokens(1.0, gamma) == gamma + 1
    assert expected_tokens(0, gamma) == 1


@given(st.floats(0, 1), st.integers(0, 20), st.floats(0, 2))
def test_speedup_is_bounded(alpha: float, gamma: int, c: float) -> None:
    assert 0 < speedup(alpha, gamma, c) <= gamma + 1 + 1e-9
    assert speedup(alpha, 0, c) == 1


@pytest.mark.parametrize(
    ("alpha", "gamma", "c"), [(-0.1, 2, 0), (1.1, 2, 0), (0.5, -1, 0), (0.5, 2, -1), (0.5, 1.5, 0)]
)
def test_bad_input_is_named(alpha: float, gamma: int, c: float) -> None:
    with pytest.raises(ValueError, match=r"got -?\d"):
        speedup(alpha, gamma, c)


def test_output_law_is_the_targets_on_1000_random_pairs() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(50, 0.3), size=(2, 1000))
    assert np.abs(output_law(p, q) - p).max() < 1e-12
    total_variation = np.abs(p - q).sum(axis=-1) / 2
    assert acceptance(p, q) == pytest.approx(1 - total_variation)


laws = st.integers(2, 6).flatmap(
    lambda V: st.lists(st.lists(st.integers(0, 5), min_size=V, max_size=V).filter(any), min_size=2, max_size=2)
)


@given(laws)
def test_output_law_with_zeros(rows: list[list[int]]) -> None:
    p, q = (np.array(row) / sum(row) for row in rows)
    assert output_law(p, q) == pytest.approx(p, abs=1e-12)
    if np.array_equal(p, q):
        assert acceptance(p, q) == pytest.approx(1)


def test_200_000_rounds_give_the_expected_number_of_tokens() -> None:
    """p and q with Σ min(p, q) = 0.8 at every position; 5 standard errors."""
    p, q = np.tile([0.4, 0.3, 0.2, 0.1], (5, 1)), np.tile([0.2, 0.3, 0.2, 0.3], (4, 1))
    assert acceptance(p[:4], q) == pytest.approx(0.8)
    tokens = speculative_rounds(p, q, 200_000, np.random.default_rng(0))
    lengths = (tokens >= 0).sum(axis=1)
    assert lengths.mean() == pytest.approx(3.3616, abs=5 * lengths.std() / 200_000**0.5)
    for i in range(5):
        reached = tokens[lengths > i, i]
        shares = np.bincount(reached, minlength=4) / len(reached)
        assert np.abs(shares - p[i]).max() < 5 * 0.5 / len(reached) ** 0.5


def test_rounds_with_a_different_law_at_each_position() -> None:
    """The mean is 1 + α₁ + α₁α₂ + …, not the closed form."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(5), size=4), rng.dirichlet(np.ones(5), size=3)
    alphas = acceptance(p[:3], q)
    lengths = (speculative_rounds(p, q, 100_000, rng) >= 0).sum(axis=1)
    assert lengths.mean() == pytest.approx(mean_tokens(alphas), abs=5 * lengths.std() / 100_000**0.5)


class Scripted:
    """A generator that returns the uniform numbers it is told to, and draws tokens by inverting the law."""

    def __init__(self, *uniforms: float) -> None:
        self.uniforms = list(uniforms)

    def random(self) -> float:
        return self.uniforms.pop(0)

    def choice(self, n: int, p: np.ndarray) -> int:
        return int(np.searchsorted(np.cumsum(p), self.random(), side="right"))


def test_a_draw_of_zero_does_not_accept_an_impossible_token() -> None:
    p, q = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])
    assert speculative_round(p, q, Scripted(0.0, 0.0, 0.5)) == [1]


def test_a_residual_of_zero_falls_back_to_the_target() -> None:
    q = np.array([[0.5, 0.5]])
    p = np.array([np.nextafter(q[0], 0), [0.5, 0.5]])
    for last, token in ((0.1, 0), (0.9, 1)):
        assert speculative_round(p, q, Scripted(0.3, 1 - 2**-53, last)) == [token]
    assert output_law(p[0], q[0]) == pytest.approx([0.5, 0.5])


def test_no_draft_is_one_token_of_the_target() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert speculative_round(np.array([[0.0, 1.0, 0.0]]), np.zeros((0, 3)), rng) == [1]


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([[0.5, 0.4], [0.5, 0.5]], [[0.5, 0.5]]),
        ([[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.6]]),
        ([[1.5, -0.5], [0.5, 0.5]], [[0.5, 0.5]]),
        ([[0.5, 0.5]], [[0.5, 0.5]]),
        ([[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.3, 0.2]]),
        ([[0.5, np.nan], [0.5, 0.5]], [[0.5, 0.5]]),
    ],
)
def test_rows_that_are_no_laws_are_refused(p: list, q: list) -> None:
    with pytest.raises(ValueError, match="got"):
        speculative_round(np.array(p), np.array(q), np.random.default_rng(0))


def test_float32_rows_are_laws() -> None:
    p = np.random.default_rng(0).dirichlet(np.full(1000, 0.1), size=3).astype(np.float32)
    assert 1 <= len(speculative_round(p, p[:2], np.random.default_rng(0))) <= 3


@settings(max_examples=30)
@given(st.floats(0.05, 0.99), st.floats(0.01, 1))
def test_best_gamma_is_best(alpha: float, c: float) -> None:
    best = best_gamma(alpha, c)
    assert all(speedup(alpha, best, c) >= speedup(alpha, gamma, c) for gamma in range(30))
    if alpha <= c:  # the first draft adds α tokens for c of a step
        assert best == 0


def test_gain_shrinks_with_the_batch() -> None:
    gains = [batch_gain(0.8, 4, B, 128, LLAMA, SMALL, H100) for B in (1, 8, 64, 128, 256, 512)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 2
    assert gains[-1] < 1, "above the ridge, rejected tokens cost compute"


def test_gain_at_batch_1_is_the_speedup_formula() -> None:
    c = SMALL.n_params / LLAMA.n_params
    assert batch_gain(0.8, 4, 1, 1, LLAMA, SMALL, H100) == pytest.approx(speedup(0.8, 4, c), rel=1e-3)


# --- what the statistical check promises ----------------------------------------------------------------


def binomial(n: int, share: float) -> np.ndarray:
    """Probabilities of 0 … n successes."""
    k = np.arange(n + 1)
    choose = np.array([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
    return np.exp(choose + k * math.log(share) + (n - k) * math.log1p(-share))


def alarms(case: judge.Case, n: int, share: float) -> np.ndarray:
    """For each count of n, whether it makes an alarm against that share."""
    limit = judge.limit(case, len(judge.tests_of(case, Counter({(0,): 1}))))
    return np.array([judge._evidence(k, n, share) > limit for k in range(n + 1)])


@pytest.mark.parametrize("seed", [0, 7])
def test_false_alarms_are_rarer_than_one_in_a_million(seed: int) -> None:
    """The levels of the cases add up to less than 1e-6, and each test's exact false-alarm rate is below its part."""
    cases = judge.cases(seed)
    assert sum(case.level for case in cases) < 1e-6
    for case in cases:
        tests = judge.tests_of(case, Counter({(0,): 1}))
        for share in {round(test.share, 12) for test in tests} - {0.0, 1.0}:
            n = min(case.n, 3000)
            assert binomial(n, share)[alarms(case, n, share)].sum() < case.level / len(tests)


def test_a_total_variation_of_2_percent_is_caught() -> None:
    """Exact power of the precise case, at both positions. With three tokens one share is off by the whole 0.02."""
    case = judge.cases(0)[-1]
    assert case.p.shape == (2, 3)
    reached = case.n * acceptance(case.p[0], case.q[0])
    at_least = int(reached - 5 * math.sqrt(reached * (1 - reached / case.n)))
    for n in (case.n, at_least):
        for share in (0.9, 0.06, 0.04):
            caught = alarms(case, n, share)
            for off in (0.02, -0.02):
                assert binomial(n, share + off)[caught].sum() > 0.999
    assert {round(x, 6) for x in case.p.ravel()} == {0.9, 0.06, 0.04}


@pytest.mark.parametrize("number", range(len(judge.SAMPLER_MISTAKES)))
def test_each_mistaken_law_is_a_law_and_is_named(number: int) -> None:
    slug, _why, sampler = judge.SAMPLER_MISTAKES[number]
    laws: dict[bytes, tuple[list, np.ndarray]] = {}

    def answer(p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> list[int]:
        key = p.tobytes() + q.tobytes()
        if key not in laws:
            law = sampler.law(p, q)
            assert sum(law.values()) == pytest.approx(1)
            laws[key] = (list(law), np.array(list(law.values())))
        rounds, weights = laws[key]
        return list(rounds[rng.choice(len(rounds), p=weights / weights.sum())])

    with pytest.raises(CheckFailed) as caught:
        judge.speculative_round(answer, seed=3)
    assert caught.value.mistake == slug


def test_the_right_law_is_the_law_of_simulated_rounds() -> None:
    for case in judge.cases(4):
        tokens = speculative_rounds(case.p, case.q, 20_000, np.random.default_rng(1))
        counts = Counter(tuple(int(x) for x in row if x >= 0) for row in tokens)
        tests = judge.tests_of(case, counts)
        assert max(test.evidence for test in tests if test.n) < judge.limit(case, len(tests))
        assert sum(judge.RIGHT.law(case.p, case.q).values()) == pytest.approx(1)


def test_picture_of_a_broken_answer_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from lessonlib import plots

    p, q = np.full((3, 3), 1 / 3), np.full((2, 3), 1 / 3)
    for broken in (lambda p, q, rng: None, lambda p, q, rng: [-1], lambda p, q, rng: 3):
        plots.speculative_sampling.tokens_by_position(broken, p, q)
        assert "No picture" in capsys.readouterr().out
