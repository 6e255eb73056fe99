"""Ten thousand engine steps of random requests, with the block pool's invariants held after every one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lessonlib import reference
from lessonlib.serving import LLM, BlockManager, Decoder, EarlyExit, PromptLookup, SamplingParams
from lessonlib.serving.request import RequestOutput
from tests.serving.conftest import make_tiny

N_STEPS = 10_000
VOCABULARY = 32  # few tokens, so that prefixes and n-grams repeat


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_tiny("llama", num_hidden_layers=1, hidden_size=16, intermediate_size=16, vocab_size=VOCABULARY)


def watched(llm: LLM) -> LLM:
    """Fail on any write into a block that two sequences hold. Sharers of a prompt only read it."""
    inner = llm.runner.write_kv

    def write_kv(k_cache, v_cache, slots, k, v):
        blocks = {slot // llm.block_size for slot in slots.tolist()}
        assert all(llm.manager.ref_counts[block] == 1 for block in blocks), "a shared block was written"
        inner(k_cache, v_cache, slots, k, v)

    llm.runner.write_kv = write_kv
    return llm


def check_pool(llm: LLM) -> None:
    manager = llm.manager
    held = Counter(block for table in manager.block_tables.values() for block in table)
    assert [manager.ref_counts[b] for b in range(llm.n_blocks)] == [held[b] for b in range(llm.n_blocks)]
    assert manager.n_free == llm.n_blocks - len(held)
    assert set(manager.block_tables) == {seq.seq_id for seq in llm.scheduler.running}
    for seq_id, table in manager.block_tables.items():
        assert len(table) == -(-manager.lengths[seq_id] // llm.block_size)
        assert len(set(table)) == len(table)
    for seq in llm.scheduler.running:
        assert 0 <= seq.n_computed < len(seq.tokens) <= manager.lengths[seq.seq_id] + 1
    if isinstance(manager, BlockManager):
        assert set(manager._block_of.values()) == set(manager._content)


def random_request(rng: np.random.Generator, olds: list[list[int]]) -> tuple[list[int], SamplingParams]:
    prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 30))).tolist()
    if olds and rng.random() < 0.5:  # goes on from an earlier one
        old = olds[int(rng.integers(len(olds)))]
        prompt = old[: int(rng.integers(1, len(old) + 1))] + prompt[: int(rng.integers(0, 5))]
    params = SamplingParams(
        max_tokens=int(rng.integers(1, 24)),
        temperature=float(rng.choice([0.0, 1.0])),
        seed=int(rng.integers(1000)),
        n=int(rng.choice([1, 1, 1, 2, 3])),
        stop_ids=(7,),
    )
    return prompt, params


VARIANTS = {
    "plain": {"block_size": 4, "n_blocks": 24, "max_batch_tokens": 16},
    "blocks of 1, drafts": {"block_size": 1, "n_blocks": 90, "max_batch_tokens": 30, "drafter": EarlyExit(1)},
    "prompt lookup": {"block_size": 3, "n_blocks": 30, "max_batch_tokens": 24, "drafter": PromptLookup()},
    "no chunks": {"block_size": 8, "n_blocks": 9, "chunked_prefill": False, "drafter": EarlyExit(1)},
    "exercise 3's allocator": {"block_size": 4, "n_blocks": 24, "block_manager": reference.BlockAllocator},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_random_steps(name: str, model: Decoder) -> None:
    rng = np.random.default_rng(list(VARIANTS).index(name))
    llm = watched(LLM(model, max_sequences=8, **VARIANTS[name]))
    n_sequences: dict[int, int] = {}
    olds: list[list[int]] = []
    ended: Counter[int] = Counter()

    def step() -> None:
        for out in llm.step():
            take(out)
        check_pool(llm)

    def take(out: RequestOutput) -> None:
        assert not ended[out.request_id] > n_sequences[out.request_id]
        ended[out.request_id] += out.finished

    for _ in range(N_STEPS // len(VARIANTS)):
        if len(llm.scheduler.waiting) < 4 and rng.random() < 0.4:
            prompt, params = random_request(rng, olds)
            bad = rng.random() < 0.05
            request_id = llm.add_request([VOCABULARY] if bad else prompt, params)
            n_sequences[request_id] = 1 if bad else params.n
            olds = [*olds[-20:], prompt]
        step()
    while llm.has_unfinished:
        step()
    assert ended == n_sequences, "every sequence ends, and once"
    assert llm.manager.n_free == llm.n_blocks
    assert llm.metrics.total("n_preempted") > 20
