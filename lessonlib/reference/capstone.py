"""Reference answers of the capstone: what a learner writes there is code of the engine, which is taken as it is."""

from __future__ import annotations

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.reference.decode_roofline import decode_step
from lessonlib.serving import admit, paged_attention, slot_mapping, verify, write_kv

__all__ = ["admit", "expected_speed", "paged_attention", "slot_mapping", "verify", "write_kv"]


def expected_speed(B: int, C: int, cfg: ModelConfig, machine: Gpu) -> tuple[float, str]:
    """What the roofline expects of the engine on this machine, before anything is run.

    Args:
        B: sequences that decode together.
        C: cached tokens of each.
        cfg: the model in the number format that it is served in (`bytes_per_weight`, `bytes_per_kv`).
        machine: peak FLOP/s and bandwidth, as measured.

    Returns:
        Tokens per second of the whole batch, and which limit binds, "memory" or "compute".
    """
    step = decode_step(B, C, cfg, machine)
    return step.tokens_per_s, step.bound
