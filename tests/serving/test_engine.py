"""The correctness matrix: every feature on and off gives the dense decoder's greedy tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from lessonlib import reference
from lessonlib.records import Admission, Policy, Request
from lessonlib.serving import (
    LLM,
    BlockManager,
    Decoder,
    DraftModel,
    EarlyExit,
    PromptLookup,
    RequestOutput,
    SamplingParams,
    admit,
    paged_attention,
    slot_mapping,
    verify,
)
from tests.serving.conftest import make_tiny

N_TOKENS = 24
GREEDY = SamplingParams(max_tokens=N_TOKENS)


def dense_greedy(model: Decoder, prompt: list[int], n: int) -> list[int]:
    """Decode without any cache: what the engine must equal."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model.dense_logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def expected(tiny: Decoder, prompts: list[list[int]]) -> list[list[int]]:
    return [dense_greedy(tiny, prompt, N_TOKENS) for prompt in prompts]


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    assert [out.error for out in outputs] == [None] * len(outputs)
    return [out.token_ids for out in outputs]


def assert_all_is_given_back(llm: LLM) -> None:
    assert llm.manager.n_free == llm.n_blocks
    assert not llm.manager.block_tables
    assert not llm.has_unfinished


def slots_one_by_one(block_table: list[int], start: int, n_tokens: int, block_size: int) -> list[int]:
    return [
        block_table[divmod(start + i, block_size)[0]] * block_size + (start + i) % block_size for i in range(n_tokens)
    ]


def write_one_by_one(
    k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    for i, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, k_cache.shape[1])
        k_cache[block, offset], v_cache[block, offset] = k[i], v[i]


def gather_then_attend(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: list[int], length: int
) -> torch.Tensor:
    k, v = (cache[block_table].flatten(0, 1)[:length].repeat_interleave(2, dim=1) for cache in (k_cache, v_cache))
    weights = torch.softmax(torch.einsum("hd,nhd->hn", q, k) / q.shape[-1] ** 0.5, -1)
    return torch.einsum("hn,nhd->hd", weights, v)


def one_at_a_time(
    waiting: list[int], n_free: int, n_blocks: int, block_size: int, token_budget: int
) -> list[Admission]:
    first = admit(waiting, n_free, n_blocks, block_size, token_budget)[:1]
    return first + [Admission("later", 0)] * (len(waiting) - len(first))


SETTINGS = {
    "as it is": {},
    **{f"blocks of {size}": {"block_size": size} for size in (1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 33, 64)},
    **{f"chunks of {n}": {"max_batch_tokens": n, "block_size": 8} for n in (1, 2, 3, 5, 8, 13, 16, 17, 64, 100)},
    "one at a time": {"max_sequences": 1},
    "three at a time": {"max_sequences": 3},
    "no chunks": {"chunked_prefill": False, "max_batch_tokens": 16},
    "static batches": {"continuous": False, "max_sequences": 4},
    "no prefix cache": {"prefix_caching": False},
    "no room: 8 blocks of 16": {"n_blocks": 8},
    "no room: 32 blocks of 4, chunks": {"n_blocks": 32, "block_size": 4, "max_batch_tokens": 11},
    "no room: 124 blocks of 1": {"n_blocks": 124, "block_size": 1},
    "attention to read": {"paged_attention": paged_attention, "block_size": 5},
    "prompt lookup": {"drafter": PromptLookup()},
    "early exit": {"drafter": EarlyExit(1), "block_size": 4},
    "one draft": {"drafter": EarlyExit(1), "n_drafts": 1, "block_size": 3},
    "eight drafts": {"drafter": EarlyExit(1), "n_drafts": 8, "block_size": 3, "max_batch_tokens": 20},
    "perfect drafts": {"drafter": EarlyExit(2), "block_size": 16},
    "perfect drafts, no room": {"drafter": EarlyExit(2), "n_blocks": 32, "block_size": 4},
    "exercise 3's allocator": {"block_manager": reference.BlockAllocator},
    "exercise 3's allocator, no room": {"block_manager": reference.BlockAllocator, "n_blocks": 8},
    "replaced parts": {
        "slot_mapping": slots_one_by_one,
        "write_kv": write_one_by_one,
        "paged_attention": gather_then_attend,
        "admit": one_at_a_time,
        "verify": lambda draft, p, q, rng: verify(draft, p, q, rng),
        "drafter": EarlyExit(1),
    },
    "exercise 4's round": {"speculative_round": reference.speculative_round, "drafter": EarlyExit(1)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_tokens_are_the_dense_decoders(
    name: str, tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    llm = LLM(tiny, **SETTINGS[name])
    assert tokens_of(llm.generate(prompts, GREEDY)) == expected
    assert_all_is_given_back(llm)
    if "no room" in name:
        assert llm.metrics.total("n_preempted") > 0, "this setting is to force preemptions"
    if "perfect" in name:
        assert llm.metrics.acceptance_rate == 1


@pytest.mark.parametrize("policy", ["static", "continuous"])
def test_steps_are_those_that_lesson_5_counts(policy: Policy, tiny: Decoder) -> None:
    """With room and budget enough, a request's prefill is one step, as it is in the batching simulator."""
    rng = np.random.default_rng(3)
    n_outputs = rng.integers(1, 30, 20).tolist()
    llm = LLM(
        tiny, max_sequences=6, max_batch_tokens=10_000 if policy == "continuous" else 8, continuous=policy != "static"
    )
    llm.generate(
        [rng.integers(0, 256, rng.integers(1, 40)).tolist() for _ in n_outputs],
        [SamplingParams(max_tokens=n, ignore_eos=True) for n in n_outputs],
    )
    counted = reference.simulate([Request(0, n) for n in n_outputs], 6, policy).n_steps
    assert len(llm.metrics.steps) == counted
    assert all(step.n_running <= 6 for step in llm.metrics.steps)


FEATURES = {
    "block_size": (1, 5, 16),
    "max_batch_tokens": (7, 512),
    "prefix_caching": (False, True),
    "chunked_prefill": (False, True),
    "drafter": (None, EarlyExit),
    "n_blocks": (130, 1024),
}


@pytest.mark.parametrize("values", list(itertools.product(*FEATURES.values()))[::3], ids=str)
def test_features_together(values: tuple, tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """A third of all combinations; the first prompts come twice, so that prefixes are found and chunks are mixed."""
    settings = dict(zip(FEATURES, values, strict=True))
    if settings["drafter"] is not None:
        settings["drafter"] = EarlyExit(1)
    llm = LLM(tiny, **settings)
    assert tokens_of(llm.generate(prompts + prompts[::-1], GREEDY)) == expected + expected[::-1]
    assert_all_is_given_back(llm)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    "settings", [{}, {"block_size": 3, "max_batch_tokens": 9, "drafter": EarlyExit(1)}], ids=["plain", "drafts"]
)
def test_other_models(kind: str, settings: dict, prompts: list[list[int]]) -> None:
    model = make_tiny(kind)
    outputs = LLM(model, **settings).generate(prompts[::2], GREEDY)
    assert tokens_of(outputs) == [dense_greedy(model, prompt, N_TOKENS) for prompt in prompts[::2]]


@pytest.mark.parametrize("draft_seed", [0, 1])
@pytest.mark.parametrize("settings", [{}, {"n_blocks": 40, "block_size": 4, "max_batch_tokens": 30}], ids=str)
def test_draft_models(
    draft_seed: int, settings: dict, tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """A draft model that is the target (seed 0) has everything accepted; one that is not changes nothing."""
    llm = LLM(tiny, drafter=DraftModel(make_tiny("llama", draft_seed)), **settings)
    assert tokens_of(llm.generate(prompts, GREEDY)) == expected
    assert (llm.metrics.acceptance_rate == 1) == (draft_seed == 0)
    assert_all_is_given_back(llm)


def test_batched_and_alone(tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]) -> None:
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert tokens_of(LLM(tiny).generate(prompt, GREEDY)) == [tokens]


def test_requests_that_come_while_others_run(
    tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    llm = LLM(tiny, block_size=4, max_batch_tokens=24)
    waiting, got = list(prompts), {}
    while waiting or llm.has_unfinished:
        if waiting:
            llm.add_request(waiting.pop(0), GREEDY)
        got |= {out.request_id: out.token_ids for out in llm.step() if out.finished}
    assert [got[i] for i in range(len(prompts))] == expected
    mixed = [step for step in llm.metrics.steps if step.n_decode and step.n_prefill_tokens]
    assert len(mixed) > 5, "prefill chunks and decodes share steps"


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("n_prompt", [15, 16, 17, 32, 48, 49])
def test_prefix_hits(block_size: int, n_prompt: int, tiny: Decoder) -> None:
    prompt = np.random.default_rng(5).integers(0, 256, n_prompt).tolist()
    llm = LLM(tiny, block_size=block_size)
    first = tokens_of(llm.generate(prompt, GREEDY))
    before = llm.metrics.total("n_cached_tokens")
    assert before == 0
    assert tokens_of(llm.generate(prompt, GREEDY)) == first == [dense_greedy(tiny, prompt, N_TOKENS)]
    # The last token is always computed, so a prompt that ends on a border counts one block less.
    assert llm.metrics.total("n_cached_tokens") == (n_prompt - 1) // block_size * block_size
    # The answer is cached, too: the next turn of the chat finds it.
    longer = prompt + first[0] + [3]
    assert tokens_of(llm.generate(longer, GREEDY)) == [dense_greedy(tiny, longer, N_TOKENS)]
    found = llm.metrics.total("n_cached_tokens") - (n_prompt - 1) // block_size * block_size
    assert found == (n_prompt + N_TOKENS - 1) // block_size * block_size


def test_a_shared_prefix_is_found_while_it_is_in_use(tiny: Decoder) -> None:
    shared = np.random.default_rng(6).integers(0, 256, 40).tolist()
    both = [[*shared, 1, 2, 3], [*shared, 4]]
    llm = LLM(tiny, block_size=8)
    llm.add_request(both[0], GREEDY)
    got = llm.step()
    llm.add_request(both[1], GREEDY)
    llm.step()
    tables = list(llm.manager.block_tables.values())
    assert tables[0][:5] == tables[1][:5]
    assert [llm.manager.ref_counts[block] for block in tables[0][:5]] == [2] * 5
    while llm.has_unfinished:
        got += llm.step()
    done = {out.request_id: out.token_ids for out in got if out.finished}
    assert [done[i] for i in (0, 1)] == [dense_greedy(tiny, prompt, N_TOKENS) for prompt in both]


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("n_prompt", [1, 16, 30])
def test_forks_share_the_prompt_and_copy_on_write(block_size: int, n_prompt: int, tiny: Decoder) -> None:
    prompt = np.random.default_rng(7).integers(0, 256, n_prompt).tolist()
    params = SamplingParams(max_tokens=12, temperature=0.9, seed=11, n=3)
    llm = LLM(tiny, block_size=block_size, prefix_caching=False)
    llm.add_request(prompt, params)
    llm.step()
    used = llm.n_blocks - llm.manager.n_free
    assert used == -(-n_prompt // block_size), "three samples, one copy of the prompt"
    llm.step()
    n_shared = n_prompt // block_size
    assert llm.n_blocks - llm.manager.n_free == n_shared + 3, "each has a last block of its own"
    together = LLM(tiny, block_size=block_size).generate(prompt, params)
    assert [out.index for out in together] == [0, 1, 2]
    alone = [LLM(tiny).generate(prompt, replace(params, n=1, seed=11 + i))[0] for i in range(3)]
    assert tokens_of(together) == tokens_of(alone)


def test_greedy_forks_in_a_small_pool(tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]) -> None:
    llm = LLM(tiny, n_blocks=34, block_size=4, max_sequences=8, drafter=EarlyExit(1))
    outputs = llm.generate(prompts[:9], replace(GREEDY, n=3))
    assert tokens_of(outputs) == [tokens for tokens in expected[:9] for _ in range(3)]
    assert llm.metrics.total("n_preempted") > 0
    assert_all_is_given_back(llm)


def test_newest_is_preempted_first_and_oldest_finishes_first(tiny: Decoder) -> None:
    prompts = [[i] * 16 for i in range(1, 5)]
    llm = LLM(tiny, n_blocks=20, block_size=4, prefix_caching=False)
    for prompt in prompts:
        llm.add_request(prompt, SamplingParams(max_tokens=40))
    finished = []
    while llm.has_unfinished:
        before = [seq.seq_id for seq in llm.scheduler.running]
        out = llm.step()
        after = [seq.seq_id for seq in llm.scheduler.running]
        if len(after) < len(before):
            done = {(o.request_id, o.index) for o in out if o.finished}
            lost = [seq_id for seq_id in before if seq_id not in after and seq_id not in done]
            assert lost == [seq_id for seq_id in before if seq_id not in done][len(before) - len(done) - len(lost) :]
        finished += [o.request_id for o in out if o.finished]
    assert finished == sorted(finished)
    assert llm.metrics.total("n_preempted") > 0


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "at least one token"),
        ("text", {}, "no tokenizer"),
        ([1] * 500, {"max_tokens": 13}, "512 positions"),
        ([1] * 300, {"max_tokens": 100}, "whole pool"),
        ([1, 256], {}, "0 to 255"),
        ([1, -1], {}, "0 to 255"),
        ([1.0, 2.0], {}, "float"),
        (torch.tensor([1.0, 2.0]), {}, "float"),
        ([True], {}, "bool"),
        (None, {}, "None"),
        ([1], {"stop_ids": (999,)}, "unknown stop token 999"),
        ([1], {"stop_ids": ("x",)}, "unknown stop token 'x'"),
        ([1], {"n": 65}, "65 samples"),
    ],
)
def test_bad_requests_fail_alone(
    prompt: object, params: dict, message: str, tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    llm = LLM(tiny, n_blocks=24)
    outputs = llm.generate([prompts[0], prompt, prompts[1]], [GREEDY, SamplingParams(**params), GREEDY])
    assert [out.finish_reason for out in outputs] == ["length", "error", "length"]
    assert message in outputs[1].error
    assert [outputs[0].token_ids, outputs[2].token_ids] == expected[:2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": None},
        {"max_tokens": True},
        {"n": 0},
        {"n": None},
        {"top_k": 0},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"temperature": None},
        {"top_p": 0},
        {"top_p": None},
        {"seed": -1},
        {"seed": 1.5},
        {"stop_ids": 5},
        {"stop_ids": "5"},
    ],
    ids=str,
)
def test_params_out_of_range(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_tensors_and_arrays_are_prompts(tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]) -> None:
    given = [torch.tensor(prompts[1]), np.array(prompts[2]), tuple(prompts[3]), [np.int64(t) for t in prompts[4]]]
    assert tokens_of(LLM(tiny).generate(given, GREEDY)) == expected[1:5]
    assert tokens_of(LLM(tiny).generate((each for each in given), GREEDY)) == expected[1:5]
    for alone in given:
        assert len(LLM(tiny).generate(alone, GREEDY)) == 1


@pytest.mark.parametrize("name", ["n_blocks", "block_size", "max_batch_tokens", "max_sequences", "n_drafts"])
def test_sizes_out_of_range(name: str, tiny: Decoder) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        LLM(tiny, **{name: 0})


def test_overflow_of_a_number_format_is_an_error_of_the_request(tiny: Decoder) -> None:
    model = make_tiny("llama")
    model.layers[1].down *= 1e37
    outputs = LLM(model, n_blocks=64).generate([[1, 2], [3]], GREEDY)
    assert [out.finish_reason for out in outputs] == ["error", "error"]
    assert "overflowed" in outputs[0].error


def test_stop_tokens_end_a_sequence(tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]) -> None:
    stop = expected[4][9]
    length = expected[4].index(stop) + 1
    for settings in ({}, {"drafter": EarlyExit(2)}):
        (out,) = LLM(tiny, **settings).generate(prompts[4], replace(GREEDY, stop_ids=(stop,)))
        assert out.finish_reason == "stop"
        assert out.token_ids == expected[4][:length]
    tiny_eos = make_tiny("llama", eos_token_id=[stop])
    assert len(LLM(tiny_eos).generate(prompts[4], GREEDY)[0].token_ids) == length
    assert len(LLM(tiny_eos).generate(prompts[4], replace(GREEDY, ignore_eos=True))[0].token_ids) == N_TOKENS


def test_streaming_gives_every_token_once(tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]) -> None:
    streamed: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    for out in LLM(tiny, drafter=EarlyExit(1)).stream(prompts, GREEDY):
        assert out.new_token_ids
        streamed[out.request_id] += out.new_token_ids
        assert streamed[out.request_id] == out.token_ids
    assert list(streamed.values()) == expected


def test_a_closed_stream_drops_its_requests_and_others_keep_their_outputs(
    tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    llm = LLM(tiny)
    before = llm.add_request(prompts[0], GREEDY)
    stream = llm.stream(prompts[1:3], GREEDY)
    next(stream)
    stream.close()
    assert tokens_of(llm.generate(prompts[3:4], GREEDY)) == expected[3:4]
    outputs = llm.step()
    assert {output.request_id for output in outputs} == {before}
    assert outputs[-1].token_ids == expected[0]
    assert not llm.has_unfinished
    assert_all_is_given_back(llm)


def test_answers_in_other_types_serve(tiny: Decoder, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """What the checks accept as right, the engine runs: slots in arrays, admissions as plain pairs."""
    llm = LLM(
        tiny,
        slot_mapping=lambda *args: np.array(slot_mapping(*args)),
        admit=lambda *args: [tuple(answer) for answer in admit(*args)],
    )
    assert tokens_of(llm.generate(prompts, GREEDY)) == expected


def test_two_judges_contradict_each_other(tiny: Decoder) -> None:
    with pytest.raises(ValueError, match="verify and speculative_round"):
        LLM(tiny, verify=verify, speculative_round=reference.speculative_round)


@pytest.mark.parametrize("make", [lambda: PromptLookup(0), lambda: PromptLookup("x"), lambda: EarlyExit(1.0)])
def test_drafters_out_of_range(make: Callable, tiny: Decoder) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        LLM(tiny, drafter=make())


def test_abort(tiny: Decoder, prompts: list[list[int]]) -> None:
    llm = LLM(tiny, max_sequences=2)
    ids = [llm.add_request(prompt, GREEDY) for prompt in prompts[:4]]
    llm.step()
    for i in (*ids, 99):
        llm.abort(i)
    assert_all_is_given_back(llm)


def test_metrics(tiny: Decoder, prompts: list[list[int]]) -> None:
    llm = LLM(tiny, n_blocks=100, max_batch_tokens=64)
    outputs = llm.generate(prompts, GREEDY)
    metrics = llm.metrics
    assert metrics.total("n_new_tokens") == len(prompts) * N_TOKENS
    assert metrics.total("n_admitted_tokens") == sum(map(len, prompts))
    assert metrics.total("n_prefill_tokens") + metrics.total("n_cached_tokens") == sum(map(len, prompts))
    assert metrics.total("n_decode") == len(prompts) * (N_TOKENS - 1)
    assert max(step.n_prefill_tokens + step.n_decode for step in metrics.steps) <= 64
    assert sorted(metrics.ttft) == sorted(out.ttft for out in outputs)
    assert all(0 < out.ttft and 0 < out.tpot for out in outputs)
    assert 0 < metrics.summary()["kv_use_max"] <= 1


def test_prefix_cache_compares_contents_where_hashes_collide() -> None:
    manager = BlockManager(8, 2, hash_of=lambda key: 0)
    manager.allocate("a", [1, 2, 3])
    manager.register("a", [1, 2, 3], 3)
    assert manager.allocate("b", [4, 5, 6]) == 0
    assert manager.allocate("c", [1, 2, 6]) == 2


def test_least_recently_used_block_goes_first_and_the_start_of_a_prompt_last() -> None:
    manager = BlockManager(4, 1)
    for name, tokens in (("old", [1, 2]), ("new", [5, 6])):
        manager.allocate(name, tokens)
        manager.register(name, tokens, 2)
    manager.free("old")
    manager.free("new")
    manager.allocate("x", 1)  # takes the old prompt's last block
    assert manager.allocate("y", [1, 2]) == 1, "its first block is still there; the new prompt's last block goes"
    manager.free("y")
    assert manager.allocate("z", [5, 6]) == 1
