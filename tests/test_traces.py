"""The samplers follow the traces whose quantiles they hold."""

from __future__ import annotations

import numpy as np
import pytest

from lessonlib.traces import PERCENT, TRACES, sample_arrivals, sample_lengths


@pytest.mark.parametrize("name", TRACES)
def test_quantiles_are_in_order(name: str) -> None:
    trace = TRACES[name]
    assert list(PERCENT) == sorted(PERCENT)
    for quantiles in (trace.prompt, trace.output):
        assert len(quantiles) == len(PERCENT) == 28
        assert list(quantiles) == sorted(quantiles)
        assert quantiles[0] >= 1
    assert "arXiv:2311.18677" in trace.source


@pytest.mark.parametrize(
    ("name", "quantity", "mean", "within"),
    [
        ("conversation", 0, 1154.7, 0.01),
        ("conversation", 1, 211.1, 0.01),
        ("code", 0, 2047.9, 0.01),
        ("code", 1, 27.9, 0.04),
    ],
)
def test_mean_lengths(name: str, quantity: int, mean: float, within: float) -> None:
    """The law that is sampled has the trace's mean, and a large sample has the law's."""
    trace = TRACES[name]
    quantiles = (trace.prompt, trace.output)[quantity]
    law = np.trapezoid(quantiles, np.array(PERCENT) / 100)
    assert law == pytest.approx(mean, rel=within)
    assert (trace.prompt_mean, trace.output_mean)[quantity] == pytest.approx(mean, abs=0.11)
    lengths = sample_lengths(name, 400_000, np.random.default_rng(0))[quantity]
    assert lengths.mean() == pytest.approx(law, rel=0.02)
    assert np.issubdtype(lengths.dtype, np.integer)
    assert quantiles[0] <= lengths.min() <= lengths.max() <= quantiles[-1]
    assert np.percentile(lengths, 50) == pytest.approx(quantiles[PERCENT.index(50)], rel=0.02)


def test_prompt_and_output_are_independent() -> None:
    prompt, output = sample_lengths("conversation", 100_000, np.random.default_rng(3))
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 0.02


@pytest.mark.parametrize("gap_cv", [1.0, 3.0])
def test_arrivals(gap_cv: float) -> None:
    times = sample_arrivals(5.53, 200_000, np.random.default_rng(1), gap_cv)
    gaps = np.diff(times, prepend=0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 5.53, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(gap_cv, rel=0.05)


def test_poisson_counts_have_mean_equal_to_variance() -> None:
    times = sample_arrivals(5.53, 100_000, np.random.default_rng(2))
    counts = np.bincount(times.astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.06)


def test_same_seed_same_requests() -> None:
    draws = [sample_lengths("code", 50, np.random.default_rng(7)) for _ in range(2)]
    np.testing.assert_array_equal(draws[0], draws[1])


def test_bad_input_is_named() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="no trace 'chat'; choose one of conversation, code"):
        sample_lengths("chat", 3, rng)
    with pytest.raises(ValueError, match="got -1"):
        sample_arrivals(-1, 3, rng)
    with pytest.raises(ValueError, match="and 0"):
        sample_arrivals(1, 3, rng, gap_cv=0)
