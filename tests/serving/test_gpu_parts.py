"""What runs on a GPU, run on the CPU: padded decode steps as graphs replay them."""

from __future__ import annotations

import pytest

from lessonlib.serving import LLM, Decoder, KVCache, SamplingParams
from lessonlib.serving.cuda_graphs import DecodeGraphs, bucket


def test_buckets() -> None:
    assert [bucket(n) for n in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("n_blocks", [300, 60])
def test_padded_decode_steps_give_the_same_tokens(
    block_size: int, n_blocks: int, tiny: Decoder, prompts: list[list[int]]
) -> None:
    params = SamplingParams(max_tokens=20)
    few = [prompt[:12] for prompt in prompts]
    expected = LLM(tiny, block_size=block_size, n_blocks=n_blocks).generate(few, params)
    llm = LLM(tiny, block_size=block_size, n_blocks=n_blocks)
    # As on a GPU: the cache has one block more, for the padding rows.
    llm.runner.cache = KVCache(tiny.cfg.shape, n_blocks + 1, block_size, tiny.dtype, tiny.device)
    llm._caches = [llm.runner.cache]
    llm.runner.graphs = DecodeGraphs(tiny, llm.runner.cache)
    outputs = llm.generate(few, params)
    assert [out.token_ids for out in outputs] == [out.token_ids for out in expected]
    rows, _ = zip(*llm.runner.graphs.steps, strict=True)
    assert len(llm.runner.graphs.steps) > 1
    assert max(rows) <= 16
