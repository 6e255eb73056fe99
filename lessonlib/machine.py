"""The machine that a notebook runs on: what it is, and what it was measured to do (torch).

The capstone predicts with these numbers before it measures the engine: read bandwidth and matmul speed stand in for a
data sheet's peaks, so that the roofline of lesson 2 also holds on a laptop's CPU.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeVar

import torch

from lessonlib.gpus import GPUS, Gpu
from lessonlib.models import ModelConfig
from lessonlib.serving import LLM, BlockManager, Decoder, SamplingParams
from lessonlib.serving.block_manager import blocks_needed
from lessonlib.serving.runner import Runner, Work
from lessonlib.simulator import ServingResult

T = TypeVar("T")


def describe(device: torch.device, dtype: torch.dtype) -> None:
    """Print what was found: device, memory, capability, and the number format that follows."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        major, minor = properties.major, properties.minor
        rows = [
            ("device", properties.name),
            ("memory", f"{properties.total_memory / 2**30:.1f} GiB"),
            ("capability", f"{major}.{minor}"),
            ("Triton kernels", "yes" if major >= 8 else "no: they need capability 8.0"),
        ]
    else:
        rows = [("device", f"CPU, {torch.get_num_threads()} threads"), ("memory", f"{_memory() / 2**30:.0f} GiB")]
        rows.append(("GPU", "none: whatever needs one is blocked here, and counts for nothing"))
    for name, value in [*rows, ("number format", str(dtype).removeprefix("torch."))]:
        print(f"{name:14} {value}")


def describe_expectation(model: Decoder) -> None:
    """Print what a step must read at least, and how long that takes at the bandwidth of some data sheets."""
    print(f"{'weights':14} {model.n_bytes / 1e9:.2f} GB, read once per step")
    for name in ("T4", "L4", "A100-40GB"):
        seconds = model.n_bytes / GPUS[name].bandwidth
        print(f"{'  ' + name:14} at least {seconds * 1e3:.2f} ms a step, {1 / seconds:,.0f} tokens/s alone")


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def seconds_of(action: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """Median seconds of an action, after one run to warm up; waits for the GPU where there is one."""
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        action()
        _wait(device)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(device: torch.device, dtype: torch.dtype) -> Gpu:
    """This machine as a `Gpu`: peak FLOP/s of a large matrix product, bandwidth of reading a large matrix.

    Args:
        device: where the model runs.
        dtype: the number format that it runs in.

    Returns:
        Measured, not data-sheet, numbers; a roofline drawn with them is one that the machine can reach.
    """
    large = 8192 if device.type == "cuda" else 1536
    a, b = (torch.randn(large, large, device=device).to(dtype) for _ in range(2))
    peak = 2 * large**3 / seconds_of(lambda: a @ b, device)
    rows = 65536 if device.type == "cuda" else 16384  # far beyond the last-level cache
    matrix = torch.randn(rows, 4096, device=device).to(dtype)
    vector = torch.randn(4096, 1, device=device).to(dtype)
    reading = min(seconds_of(lambda: matrix @ vector, device), seconds_of(matrix.sum, device))  # CPUs sum faster
    bandwidth = matrix.numel() * matrix.element_size() / reading
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else _memory()
    return Gpu(name, peak, bandwidth, float(max(memory, 1)))


def served_config(model: Decoder) -> ModelConfig:
    """The model's shape in the number format that it is served in, for the formulas of lessons 1 and 2."""
    size = torch.finfo(model.dtype).bits // 8
    return replace(model.cfg.shape, bytes_per_weight=size, bytes_per_kv=size)


def step_seconds(model: Decoder, n_sequences: int, context: int, block_size: int = 16, repeats: int = 5) -> float:
    """Median seconds of one decode step, measured on a pool of its own that holds no meaningful tokens.

    Args:
        model: the decoder.
        n_sequences: B.
        context: C, cached tokens of each sequence, the new one included.
        block_size: tokens per block.
        repeats: measured steps.
    """
    blocks = -(-context // block_size)
    manager = BlockManager(n_sequences * blocks, block_size)
    runner = Runner(model, n_sequences * blocks, block_size, manager)
    for i in range(n_sequences):
        manager.allocate(i, context)
    work = [Work(i, [i % 100], context - 1) for i in range(n_sequences)]
    return seconds_of(lambda: runner.logits(work, [1] * n_sequences), model.device, repeats)


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Go through items with a bar of plain text, which every front end shows."""
    if total is None:
        assert isinstance(items, Sequence)
        total = len(items)
    for done, item in enumerate(items):
        _bar(label, done, total)
        yield item
    _bar(label, total, total)
    print()


def _bar(label: str, done: int, total: int) -> None:
    full = round(30 * done / max(total, 1))
    print(f"\r{label} [{'#' * full}{'.' * (30 - full)}] {done}/{total}", end="", flush=True)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What an engine did, on a clock that runs during its own steps only, and what `StepProbes` saw meanwhile.

    Args:
        seconds: of all steps.
        ttft: seconds to the first token of each request, all of them there from the start.
        steps: for `simulator.LinearCost.fitted`, mean (tokens computed, cached tokens read, seconds) of each probe.
    """

    seconds: float
    ttft: list[float]
    steps: list[tuple[float, float, float]]

    def errors(self, simulated: ServingResult) -> tuple[float, float]:
        """Relative errors of a simulation, in throughput and in mean TTFT."""
        return abs(self.seconds / simulated.duration - 1), abs(float(simulated.ttft.mean()) / fmean(self.ttft) - 1)


class StepProbes:
    """Three kinds of engine step that are measured in turn with the steps of another engine.

    Eight sequences that decode with short contexts, eight with longer ones, and seven with a prompt that joins them.
    The speed of a shared machine changes by a tenth within seconds. Steps in turn see the same changes.
    """

    def __init__(self, model: Decoder) -> None:
        self.probes = [_Probe(model, 8, 32), _Probe(model, 8, 96), _Probe(model, 7, 64, n_prefill=90)]

    def run_beside(self, llm: LLM) -> TimedRun:
        """Run an engine to the end of its requests, and after its steps measure the probe that is of their kind.

        Raises:
            ValueError: a request failed.
        """
        ttft: dict[tuple[int, int], float] = {}
        seen: list[list[tuple[int, int, float]]] = [[] for _ in self.probes]
        decodes = itertools.cycle((0, None, 1, None))  # after every second step without a prompt
        while llm.has_unfinished:
            for output in llm.step():
                if output.error is not None:
                    raise ValueError(f"request {output.request_id} cannot be measured: {output.error}")
                ttft.setdefault((output.request_id, output.index), llm.metrics.total("seconds"))
            kind = 2 if llm.metrics.steps[-1].n_prefill_tokens else next(decodes)
            if kind is not None:
                seen[kind].append(self.probes[kind].measure())
        steps = []
        for probe, each in zip(self.probes, seen, strict=True):
            n, cached, seconds = zip(*(each or [probe.measure()]), strict=True)  # none in a run of few steps
            steps.append((fmean(n), fmean(cached), fmean(seconds)))
        return TimedRun(llm.metrics.total("seconds"), list(ttft.values()), steps)


class _Probe:
    """An engine whose sequences decode on and on, with a new prompt in every measured step if asked for."""

    def __init__(self, model: Decoder, n_decodes: int, n_context: int, n_prefill: int = 0) -> None:
        self.n_decodes, self.prompt, self.joining = n_decodes, [7] * n_context, [7] * n_prefill
        n_new = min(256, model.cfg.max_positions - n_context)
        self.params = SamplingParams(max_tokens=n_new, ignore_eos=True)
        n_blocks = 8 * blocks_needed(n_context + n_new, 16)
        self.llm = LLM(model, n_blocks=n_blocks, max_sequences=8, max_batch_tokens=128, prefix_caching=False)

    def measure(self) -> tuple[int, int, float]:
        """One step: tokens computed, cached tokens read, seconds."""
        while (missing := self.n_decodes - len(self.llm.scheduler.running)) > 0:
            for _ in range(missing):
                self.llm.add_request(self.prompt, self.params)
            while any(seq.n_uncomputed > 1 for seq in [*self.llm.scheduler.running, *self.llm.scheduler.waiting]):
                self.llm.step()
        if self.joining:
            self.llm.add_request(self.joining, SamplingParams(max_tokens=1, ignore_eos=True))
        self.llm.step()
        step = self.llm.metrics.steps[-1]
        return step.n_decode + step.n_prefill_tokens, step.n_context - step.n_prefill_tokens, step.seconds


def logits_at(model: Decoder, tokens: list[int], first_position: int) -> torch.Tensor:
    """Logits after tokens that are computed as if the first of them stood at a certain position.

    Args:
        model: the decoder.
        tokens: the sequence.
        first_position: 0 is right; anything else is what a scheduler gets wrong.
    """
    n_slots = first_position + len(tokens)
    manager = BlockManager(-(-n_slots // 16), 16)
    manager.allocate("s", n_slots)
    runner = Runner(model, manager.n_free + len(manager.block_tables["s"]), 16, manager)
    return runner.logits([Work("s", tokens, first_position)], [1])[0]


def logits_after_drafts(model: Decoder, accepted: list[int], rejected: list[int], kept: int, new: int) -> torch.Tensor:
    """Logits after a new token, when a pass has left the keys of rejected drafts behind it in the cache.

    Args:
        model: the decoder.
        accepted: tokens of the sequence.
        rejected: drafts that were computed after them and rejected.
        kept: how many of those the cached length still counts; 0 is right.
        new: the token that follows.
    """
    n_slots = len(accepted) + len(rejected) + 1
    manager = BlockManager(-(-n_slots // 16), 16)
    manager.allocate("s", n_slots)
    runner = Runner(model, len(manager.block_tables["s"]), 16, manager)
    runner.logits([Work("s", [*accepted, *rejected], 0)], [1])
    return runner.logits([Work("s", [new], len(accepted) + kept)], [1])[0]


def describe_kernels(device: torch.device) -> None:
    """Print which attention kernels this device runs."""
    if device.type != "cuda":
        print("blocked: no GPU here. The torch path ran in all cells above.")
        return
    from lessonlib.serving.triton_attention import is_supported

    if not is_supported(device):
        print("blocked: this GPU is older than capability 8.0. The torch path ran in all cells above.")
        return
    print("Triton split-KV decode kernel: in use.")
