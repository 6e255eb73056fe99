"""The engine on a GPU, in at most four minutes: shares of the roofline, an 8B-shaped model, ratio to `transformers`.

`--smoke` runs the same code on a tiny model, on a CPU too, to see that it works; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch

from benchmarks.bench_engine import (
    decode_seconds_of_transformers,
    random_prompts,
    roofline_seconds,
    smollm2_in_transformers,
)
from lessonlib.gpus import Gpu
from lessonlib.machine import measured
from lessonlib.models import MODELS
from lessonlib.serving import (
    LLM,
    Decoder,
    DecoderConfig,
    SamplingParams,
    choose_device,
    choose_dtype,
    load_model,
    tiny_config,
)
from lessonlib.serving.model import weight_shapes

LIMIT = 240  # seconds for everything


class RandomWeights(dict):
    """Weights that are made when they are asked for, on the device: an 8B model never is in the CPU's memory."""

    def __init__(self, cfg: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.shapes, self.dtype, self.device = weight_shapes(cfg), dtype, device

    def get(self, name: str, default: object = None) -> torch.Tensor:  # type: ignore[override]
        return torch.empty(self.shapes[name], dtype=self.dtype, device=self.device).normal_(0, 0.02)


def random_model(name: str, dtype: torch.dtype, device: torch.device) -> Decoder:
    cfg = tiny_config() if name == "tiny" else DecoderConfig(MODELS[name], max_positions=8192, tied_embeddings=False)
    return Decoder(cfg, RandomWeights(cfg, dtype, device), dtype, device)


def fits(name: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the weights and 20% more find room on the GPU."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return 1.2 * MODELS[name].n_params * torch.finfo(dtype).bits / 8 < free


def step_seconds(model: Decoder, B: int, C: int, n: int = 24) -> float:
    """Median decode step, prefill and the steps that capture a graph left out."""
    n_blocks = B * ((C + n) // 16 + 2)
    llm = LLM(model, max_batch_tokens=8192, max_sequences=B, n_blocks=n_blocks, prefix_caching=False)
    vocabulary = model.cfg.shape.vocab_size
    prompts = [[token % vocabulary for token in prompt] for prompt in random_prompts(B, C - n // 2)]
    llm.generate(prompts, SamplingParams(max_tokens=n, ignore_eos=True))
    return statistics.median(step.seconds for step in llm.metrics.steps if step.n_prefill_tokens == 0)


def roofline_table(
    name: str, model: Decoder, machine: Gpu, points: list[tuple[int, int]], deadline: float
) -> Iterator[str]:
    yield f"| {name}, {model.dtype} | step | roofline | share of it | tokens/s |"
    yield "|---|---|---|---|---|"
    for B, C in points:
        if time.perf_counter() > deadline:
            yield f"| batch {B}, context {C} | not run: time is up | | | |"
            continue
        step, bound = step_seconds(model, B, C), roofline_seconds(model, B, C, machine)
        times = f"{step * 1e3:.2f} ms | {bound * 1e3:.2f} ms | {bound / step:.2f}"
        yield f"| batch {B}, context {C} | {times} | {B / step:.0f} |"


def tables(smoke: bool) -> Iterator[str]:
    start = time.perf_counter()
    device = choose_device()
    dtype = choose_dtype(device)
    machine = measured(device, dtype)
    peak, bandwidth = machine.peak_flops / 1e12, machine.bandwidth / 1e9
    yield f"{machine.name}, {dtype}: {bandwidth:.0f} GB/s and {peak:.1f} TFLOP/s measured"
    yield ""
    if smoke:
        yield from roofline_table("tiny", random_model("tiny", dtype, device), machine, [(1, 64), (3, 100)], start + 60)
        return
    large = next((name for name in ("Llama-3.1-8B", "Llama-3.2-3B", "Llama-3.2-1B") if fits(name, dtype, device)), None)
    if large is not None:
        model = random_model(large, dtype, device)
        points = [(1, 256), (1, 4096), (8, 1024), (32, 1024), (64, 512)]
        yield from roofline_table(f"{large}'s shape", model, machine, points, start + 0.6 * LIMIT)
        yield ""
        del model
        torch.cuda.empty_cache()
    model, _ = load_model(dtype=dtype, device=str(device))
    points = [(1, 64), (1, 2048), (32, 64), (128, 512)]
    yield from roofline_table("SmolLM2-135M", model, machine, points, start + 0.8 * LIMIT)
    yield ""
    theirs = smollm2_in_transformers(dtype).to(device)
    yield "| decode, context 64 | engine | transformers | ratio |"
    yield "|---|---|---|---|"
    for B in (1, 32):
        if time.perf_counter() < start + 0.9 * LIMIT:
            ours, other = step_seconds(model, B, 64), decode_seconds_of_transformers(theirs, B, 48, 16)
            yield f"| SmolLM2-135M, batch {B} | {B / ours:.0f} tok/s | {B / other:.0f} tok/s | {other / ours:.2f}x |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, on any device")
    arguments = parser.parse_args()
    if not arguments.smoke and not torch.cuda.is_available():
        raise SystemExit("no GPU here: try --smoke")
    for line in tables(arguments.smoke):
        print(line, flush=True)


if __name__ == "__main__":
    main()
