"""Peak arithmetic, bandwidth and memory of real GPUs, from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the roofline model knows of a GPU.

    Args:
        name: what the GPU is called.
        peak_flops: P, dense 16-bit tensor FLOP/s (no sparsity).
        bandwidth: BW, memory bandwidth in bytes/s.
        memory: memory in bytes (decimal GB, as the makers count).

    Raises:
        ValueError: a number is not positive and finite.
    """

    name: str
    peak_flops: float
    bandwidth: float
    memory: float

    def __post_init__(self) -> None:
        for field in ("peak_flops", "bandwidth", "memory"):
            value = getattr(self, field)
            if isinstance(value, (str, bool)) or not 0 < value < float("inf"):
                raise ValueError(f"{field} must be a positive number, got {value!r}")

    @property
    def ridge_point(self) -> float:
        """R = P / BW in FLOP/byte: work of lower intensity is bound by memory (Williams et al. 2009)."""
        return self.peak_flops / self.bandwidth


def _gpus(*gpus: Gpu) -> dict[str, Gpu]:
    return {gpu.name: gpu for gpu in gpus}


# fmt: off
GPUS: dict[str, Gpu] = _gpus(
    Gpu("T4",         65e12,   320e9,   16e9),   # NVIDIA T4 data sheet (2019); fp16, no bf16
    Gpu("L4",         121e12,  300e9,   24e9),   # NVIDIA L4 data sheet (2023); 242 TFLOP/s with sparsity
    Gpu("A10",        125e12,  600e9,   24e9),   # NVIDIA A10 data sheet (2021)
    Gpu("A100-40GB",  312e12,  1555e9,  40e9),   # NVIDIA A100 data sheet (2021), 40 GB
    Gpu("A100-80GB",  312e12,  2039e9,  80e9),   # NVIDIA A100 data sheet (2021), SXM 80 GB
    Gpu("H100-PCIe",  756e12,  2.0e12,  80e9),   # NVIDIA H100 data sheet (2023); 1,513 TFLOP/s with sparsity
    Gpu("H100-SXM",   989e12,  3.35e12, 80e9),   # NVIDIA H100 data sheet (2023); 1,979 TFLOP/s with sparsity
    Gpu("H200",       989e12,  4.8e12,  141e9),  # NVIDIA H200 data sheet (2024)
    Gpu("B200",       2250e12, 8.0e12,  192e9),  # NVIDIA Blackwell architecture brief (2024)
    Gpu("MI300X",     1307e12, 5.3e12,  192e9),  # AMD Instinct MI300X data sheet (2023)
)
# fmt: on
