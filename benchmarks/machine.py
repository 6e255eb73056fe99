"""What this machine can do, measured, so that speeds can be given as shares of a roofline."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from lessonlib.gpus import Gpu


def seconds(call: Callable[[], object], n: int = 7) -> float:
    """Fastest of n runs after one to warm up: what else runs on the machine only ever adds time."""
    call()
    return min(_timed(call) for _ in range(n))


def median_seconds(call: Callable[[], object], n: int = 5) -> float:
    """Median of n runs after one to warm up."""
    call()
    return statistics.median(_timed(call) for _ in range(n))


def _timed(call: Callable[[], object]) -> float:
    _synchronize()
    start = time.perf_counter()
    call()
    _synchronize()
    return time.perf_counter() - start


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured_machine(device: torch.device, dtype: torch.dtype) -> Gpu:
    """Bandwidth of reading a matrix larger than every cache, in a matrix-vector product; peak of a square matmul."""
    rows = 16384 if device.type == "cuda" else 8192
    matrix = torch.ones(rows, 8192, dtype=dtype, device=device)
    vector = torch.ones(8192, dtype=dtype, device=device)
    bandwidth = matrix.numel() * matrix.element_size() / seconds(lambda: torch.mv(matrix, vector), 10)
    n = 8192 if device.type == "cuda" else 1024
    square = matrix[:n, :n].contiguous()
    peak = 2 * n**3 / seconds(lambda: square @ square, 5)
    return Gpu(describe(device), peak, bandwidth, 1e9)


def describe(device: torch.device) -> str:
    """The processor or GPU by name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads"
