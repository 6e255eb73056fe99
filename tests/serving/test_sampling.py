"""Sampled tokens have the law that they should, with and without drafts; seeds make them repeatable."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lessonlib import reference
from lessonlib.serving import LLM, Decoder, DraftModel, EarlyExit, PromptLookup, SamplingParams, verify
from lessonlib.serving.sampler import draw, probabilities
from tests.serving.conftest import make_tiny

LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0]])


def kept(params: SamplingParams) -> list[int]:
    return torch.nonzero(probabilities(LOGITS, params)[0]).flatten().tolist()


def test_temperature_top_k_and_top_p() -> None:
    torch.testing.assert_close(probabilities(LOGITS, SamplingParams(temperature=0.5)), torch.softmax(LOGITS / 0.5, -1))
    assert probabilities(LOGITS, SamplingParams())[0].tolist() == [1, 0, 0, 0, 0]
    assert kept(SamplingParams(temperature=1, top_k=2)) == [0, 1]
    assert kept(SamplingParams(temperature=1, top_k=99)) == [0, 1, 2, 3, 4]
    p = torch.softmax(LOGITS, -1)[0].tolist()
    assert kept(SamplingParams(temperature=1, top_p=p[0] - 0.01)) == [0], "the first token is always kept"
    assert kept(SamplingParams(temperature=1, top_p=p[0] + 0.01)) == [0, 1]
    cut = probabilities(LOGITS, SamplingParams(temperature=1, top_k=4, top_p=0.8))
    assert cut.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-40])
def test_the_coldest_temperatures_are_greedy(temperature: float, tiny: Decoder) -> None:
    law = probabilities(LOGITS.double(), SamplingParams(temperature=temperature, top_p=0.9))
    assert law.tolist() == [[1, 0, 0, 0, 0]]
    cold, greedy = (SamplingParams(temperature=t, max_tokens=8, seed=0) for t in (temperature, 0))
    assert LLM(tiny).generate([5], cold)[0].token_ids == LLM(tiny).generate([5], greedy)[0].token_ids


def test_draw_never_takes_an_impossible_token() -> None:
    rng = np.random.default_rng(0)
    assert {draw(np.array([0, 0.5, 0, 0.5, 0]), rng) for _ in range(500)} == {1, 3}


def counts(tokens: list[int] | np.ndarray, n: int) -> np.ndarray:
    return np.bincount(tokens, minlength=n)


def assert_law(observed: np.ndarray, law: np.ndarray) -> None:
    """Pearson's test, which fails beyond 5.5 standard deviations: a false alarm in fewer than 1e-6 of runs.

    Tokens that are expected fewer than 10 times are counted as one.
    """
    expected = law * observed.sum()
    rare = expected < 10
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    used = expected > 0
    assert observed[~used].sum() == 0
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    k = used.sum() - 1
    z = ((statistic / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))  # Wilson and Hilferty (1931)
    assert z < 5.5, f"chi-squared {statistic:.1f} with {k} degrees of freedom"


DRAFTERS = {
    "none": {},
    "early exit": {"drafter": EarlyExit(1)},
    "draft model": {"drafter": DraftModel(make_tiny("llama", 0, num_hidden_layers=1, vocab_size=16))},
    "prompt lookup": {"drafter": PromptLookup(1)},
    "exercise 4's round": {"drafter": EarlyExit(1), "speculative_round": reference.speculative_round},
}


@pytest.fixture(scope="module")
def small() -> Decoder:
    """16 tokens, and flat enough laws that all of them occur."""
    model = make_tiny("llama", vocab_size=16)
    model.head = model.embedding * 0.15
    return model


@pytest.mark.parametrize("name", DRAFTERS)
def test_law_of_three_tokens(name: str, small: Decoder) -> None:
    """The first two and the last two of three tokens, against the dense decoder's laws of all 16³ continuations."""
    prompt, params = [3, 1, 4, 1, 3], SamplingParams(max_tokens=3, temperature=1.0, n=1)
    law = np.zeros((16, 16, 16))
    p1 = probabilities(small.dense_logits(prompt)[-1:].double(), params)[0].numpy()
    for i in range(16):
        p2 = probabilities(small.dense_logits([*prompt, i])[-1:].double(), params)[0].numpy()
        for j in range(16):
            p3 = probabilities(small.dense_logits([*prompt, i, j])[-1:].double(), params)[0].numpy()
            law[i, j] = p1[i] * p2[j] * p3
    n = 6000
    llm = LLM(small, max_sequences=256, max_batch_tokens=1024, n_drafts=2, **DRAFTERS[name])
    requests = [SamplingParams(max_tokens=3, temperature=1.0, seed=1000 + i) for i in range(n)]
    outputs = llm.generate([prompt] * n, requests)
    tokens = np.array([out.token_ids for out in outputs])
    assert_law(counts(16 * tokens[:, 0] + tokens[:, 1], 256), law.sum(2).ravel())
    assert_law(counts(16 * tokens[:, 1] + tokens[:, 2], 256), law.sum(0).ravel())
    if name != "none":
        assert 0 < llm.metrics.acceptance_rate < 1


def test_verify_is_exact_and_says_what_stays_in_the_cache() -> None:
    rng = np.random.default_rng(2)
    p, q = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), np.array([[0.2, 0.3, 0.5]])
    first = []
    for _ in range(20_000):
        token = draw(q[0], rng)
        emitted, n_kept = verify([token], p, q, rng)
        assert len(emitted) == n_kept + 1
        first.append(emitted[0])
    assert_law(counts(first, 3), p[0])


def test_a_seed_gives_the_same_tokens_whatever_else_runs(tiny: Decoder, prompts: list[list[int]]) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.8, top_k=50, seed=42)
    (alone,) = LLM(tiny).generate(prompts[5], params)
    others = [SamplingParams(max_tokens=20, temperature=1.0, seed=i) for i in range(5)]
    crowd = LLM(tiny, block_size=4, max_batch_tokens=16).generate(prompts[:6], [*others, params])
    assert crowd[5].token_ids == alone.token_ids
    small_pool = LLM(tiny, block_size=4, n_blocks=30).generate(prompts[:6], [*others, params])
    assert small_pool[5].token_ids == alone.token_ids, "also where it was preempted and computed again"
    different = LLM(tiny).generate(prompts[5], SamplingParams(max_tokens=20, temperature=0.8, top_k=50, seed=43))
    assert different[0].token_ids != alone.token_ids
