"""Figure 6: a long prompt arrives at a decoding server.

Chunked prefill: Agrawal et al. 2024 (Sarathi-Serve, arXiv:2403.02310); disaggregation: Zhong et al. 2024 (DistServe,
arXiv:2401.09670).
"""

from __future__ import annotations

from typing import Any

from lessonlib.figures import interactive, still
from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.roofline import (
    decode_bytes,
    decode_flops,
    prefill_flops,
    prefill_seconds,
    step_seconds,
    transfer_seconds,
)

TITLE = "A long prompt arrives at 64 decoding sequences"
CFG, GPU = MODELS["Llama-3-8B"], GPUS["H100-SXM"]
B, C, PROMPT = 64, 1024, 32_768
CHUNKS = (256, 512, 1024, 2048, 4096, 8192)
PEAK_PERCENT = (100, 50)
LINKS = {"50 GB/s": 50e9, "450 GB/s (NVLink)": 450e9}
SLO = 0.050  # seconds per output token
START: dict[str, Any] = {"policy": "one piece", "chunk": 512, "percent": 100}


def decode_seconds(share: float) -> float:
    """A step of the 64 sequences alone."""
    return step_seconds(decode_bytes(B, C, CFG), decode_flops(B, B * C, CFG), GPU, share)


def chunk_seconds(chunk: int, share: float) -> list[float]:
    """The steps of the 64 sequences while the prompt is prefilled beside them, in chunks of so many tokens.

    A chunk attends to those before it, so the steps get longer. A step reads the weights and the 64 caches once.
    """
    return [
        step_seconds(
            decode_bytes(B, C, CFG), decode_flops(B, B * C, CFG) + prefill_flops(chunk, CFG, cached), GPU, share
        )
        for cached in range(0, PROMPT, chunk)
    ]


def interference() -> interactive.Figure:
    """TPOT of 64 sequences while a 32,768-token prompt is prefilled: in one piece, in chunks, or on other GPUs."""
    data = {
        "state": START,
        "B": B,
        "prompt": PROMPT,
        "slo": SLO,
        "chunks": CHUNKS,
        "decode": {n: decode_seconds(n / 100) for n in PEAK_PERCENT},
        "steps": {n: {chunk: chunk_seconds(chunk, n / 100) for chunk in (*CHUNKS, PROMPT)} for n in PEAK_PERCENT},
        "prefill": {n: prefill_seconds(PROMPT, CFG, GPU, n / 100) for n in PEAK_PERCENT},
        "links": {name: transfer_seconds(PROMPT, CFG, bandwidth) for name, bandwidth in LINKS.items()},
    }
    steps = chunk_seconds(PROMPT, 1.0)
    return interactive.figure(
        "interference",
        title=TITLE,
        idea="Choose how its 32,768 tokens are prefilled. The line is the time per token that the 64 others see.",
        alt="TPOT of the decoding sequences over time, on a log scale, with the SLO line and the TTFT of the prompt.",
        data=data,
        picture=_still(steps),
        height=250,
        readings=[
            ("Longest TPOT", still.milliseconds(max(steps))),
            ("Against before", f"{still.three(max(steps) / decode_seconds(1.0))}×"),
            ("Steps over SLO", still.fixed(sum(t > SLO for t in steps))),
            ("TTFT of the prompt", still.milliseconds(sum(steps))),
        ],
        says=f"One piece: all 64 sequences wait {still.milliseconds(max(steps))} for one token.",
    )


def _still(steps: list[float]) -> str:
    """The first state: the spike of one piece, over the time in seconds."""
    plain, end = decode_seconds(1.0), sum(steps) * 1.1
    at, up = still.linear(-0.1, end, 52, 648), still.logarithmic(0.004, 2.5, 220, 40)
    svg = still.text(0, 14, "TPOT of the 64 sequences (log scale), over the seconds since the prompt arrived", "head")
    for t, words in ((0.005, "5 ms"), (0.01, "10 ms"), (0.05, "50 ms"), (0.1, "100 ms"), (0.5, "500 ms"), (1, "1 s")):
        svg += still.line(52, up(t), 648, up(t), "rule") + still.text(46, up(t) + 4, words, "soft", "end")
    for t in still.ticks(end, 6)[:-1]:
        svg += still.text(at(t), 238, still.fixed(t, 2), "soft", "middle")
    points, now = [(-0.1, plain), (0.0, plain)], 0.0
    for t in steps:
        points += [(now, t), (now + t, t)]
        now += t
    points += [(now, plain), (end, plain)]
    svg += still.line(52, up(SLO), 648, up(SLO), "slo")
    svg += still.text(at(0) + 8, up(SLO) - 6, f"SLO {still.fixed(SLO * 1e3)} ms", "bold")
    svg += still.path([(at(t), up(v)) for t, v in points], "curve o")
    return svg + still.text(at(0) + 6, up(max(steps)) - 8, f"one step of {still.milliseconds(max(steps))}", "bold")
