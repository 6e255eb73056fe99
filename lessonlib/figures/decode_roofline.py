"""Figure 1: what bounds a decode step, what fits in memory, and what a larger batch brings.

The page holds the formula, for every batch and setting. A learner's `decode_step` is called at every setting that
the controls reach; what it returns is stored as a ratio to the reference, which is empty for a right answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import fields, replace
from typing import Any

from lessonlib.check.harness import Answer, fail, show
from lessonlib.figures import interactive, still
from lessonlib.gpus import GPUS, Gpu
from lessonlib.models import MODELS, ModelConfig
from lessonlib.records import DecodeStep
from lessonlib.reference import decode_step as reference
from lessonlib.reference import max_batch

TITLE = "The decode step on the roofline"
MODEL_KINDS = {"Llama-3-8B": "GQA", "Llama-2-7B": "MHA", "Falcon-7B": "MQA"}
GPU_NAMES = ("L4", "A100-80GB", "H100-SXM", "H200")
KV_BYTES = (2, 1)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 32768)
FINE = tuple(sorted({2**i for i in range(18)} | {3 * 2**i for i in range(16)}))
# Share of the GPU kept for activations and buffers: leaves 50 GB of an H100 for the caches of Llama-3-8B.
RESERVED = 0.17425
START: dict[str, Any] = {"model": "Llama-3-8B", "gpu": "H100-SXM", "kv": 2, "C": 1024, "B": 32}

Key = tuple[int, int, int, int]
Grid = tuple[tuple[int, ...], tuple[int, ...]]  # contexts, and batches below B_max
# A learner's answer whose differences do not fit in the output is drawn on the next, coarser grid.
GRIDS: tuple[Grid, ...] = ((CONTEXTS, FINE), ((1024, 4096, 32768), tuple(2 ** (2 * i + 1) for i in range(9))))
BUDGET = 27_000  # bytes


def room(cfg: ModelConfig, gpu: Gpu) -> int:
    """M_kv: bytes for caches beside the weights and the reserved share."""
    return round(gpu.memory * (1 - RESERVED) - cfg.n_params * cfg.bytes_per_weight)


def stops(grid: Grid, C: int, cfg: ModelConfig, gpu: Gpu) -> list[int]:
    """The batches that the slider offers: from 1 to B_max."""
    fits = max_batch(max(0, room(cfg, gpu)), C, cfg)
    return [B for B in grid[1] if B < fits] + [max(fits, 1)]


def settings(grid: Grid) -> Iterator[tuple[Key, ModelConfig, Gpu]]:
    """Every setting that the controls reach, but for the batch: numbers of its options, model, GPU."""
    for i, model in enumerate(MODEL_KINDS):
        for j, name in enumerate(GPU_NAMES):
            for k, e in enumerate(KV_BYTES):
                for m in range(len(grid[0])):
                    yield (i, j, k, m), replace(MODELS[model], bytes_per_kv=e), GPUS[name]


@interactive.or_message(TITLE, "figures.decode_roofline()")
def decode_roofline(decode_step: Callable[..., DecodeStep] | None = None) -> interactive.Figure:
    """Time, memory and throughput of a decode step, for any batch, context, cache format, model and GPU.

    Args:
        decode_step: the learner's `decode_step(B, C, cfg, gpu)`; the reference where it is left out.
    """
    answer = interactive.learners(decode_step, "decode_step")
    cfg, gpu = MODELS[START["model"]], GPUS[START["gpu"]]
    points = {}
    for B in sorted({1, START["B"], *stops(GRIDS[0], START["C"], cfg, gpu)}):
        args = (B, START["C"], cfg, gpu)
        points[B] = _checked(answer, args, answer(*args)) if answer else reference(*args)
    grid, yours = GRIDS[0], None
    if answer:
        yours = _compared(answer, grid)
        if len(interactive.compact(yours)) > BUDGET:
            grid = GRIDS[1]
            yours = _compared(answer, grid)
    return interactive.figure(
        "decode_roofline",
        title=TITLE,
        idea="Raise the batch B: the weights are read once for all, the caches once each. Which bar is the longer?",
        alt="Bars of the time to read weights and caches and of that to compute; GPU memory; tokens/s against TPOT.",
        data={
            "state": START,
            "models": {name: _model(MODELS[name], kind) for name, kind in MODEL_KINDS.items()},
            "gpus": {name: _gpu(GPUS[name]) for name in GPU_NAMES},
            "reserved": RESERVED,
            "contexts": grid[0],
            "stops": grid[1],
            **({"yours": yours} if yours else {}),
        },
        picture=_still(points, cfg, gpu),
        height=150,
        readings=_readings(points[START["B"]], cfg, gpu),
        says=_says(points, reference(START["B"], START["C"], cfg, gpu), yours),
    )


def _model(cfg: ModelConfig, kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "n_params": cfg.n_params,
        "weights": cfg.n_params * cfg.bytes_per_weight,
        "kv_numbers": 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim,
        "attention": 4 * cfg.n_layers * cfg.n_heads * cfg.head_dim,
    }


def _gpu(gpu: Gpu) -> dict[str, float]:
    return {"peak_flops": gpu.peak_flops, "bandwidth": gpu.bandwidth, "memory": gpu.memory}


# --- a learner's answer -----------------------------------------------------------------------------------


def _checked(answer: Answer, args: tuple[Any, ...], result: Any) -> DecodeStep:
    """What the learner's function returned for `args`, with every field checked to be there."""
    names = [f.name for f in fields(DecodeStep)]
    try:
        values = {name: getattr(result, name) for name in names}
    except Exception:  # a field that is missing, or a property that raises
        fail(answer.text(args), show(result), f"a DecodeStep({', '.join(names)})")
    bound = values.pop("bound")
    numbers: dict[str, float] = {
        name: float(answer.as_number(value, f"{answer.text(args)}.{name}")) for name, value in values.items()
    }
    for name, value in numbers.items():
        if value <= 0:
            fail(f"{answer.text(args)}.{name}", repr(value), "a number above 0")
    if not isinstance(bound, str) or bound not in ("memory", "compute"):
        fail(f"{answer.text(args)}.bound", show(bound), '"memory" or "compute"')
    return DecodeStep(**numbers, bound=bound)  # type: ignore[arg-type]


def _compared(answer: Answer, grid: Grid) -> dict[str, Any]:
    """How the learner's results differ from what they should be, at every setting of a grid.

    Returns:
        "rows", each a ratio per stop, none twice; "index", for each setting (numbers of model, GPU, format and context)
        its row per field, −1 where the field is right. Settings where all is right are left out.
    """
    rows: dict[tuple[float, ...], int] = {}
    index: dict[str, list[int]] = {}
    now: list[tuple[Any, ...]] = [()]

    def compare() -> None:
        for key, cfg, gpu in settings(grid):
            by_stop = []
            for B in stops(grid, grid[0][key[3]], cfg, gpu):
                now[0] = (B, grid[0][key[3]], cfg, gpu)
                right = reference(*now[0])
                # Copies: an answer that changes its arguments must not reach the catalogues.
                got = _checked(answer, now[0], answer.function(*now[0][:2], copy(cfg), copy(gpu)))
                by_stop.append(_ratios(got, right, B, gpu))
            fields_ = list(zip(*by_stop, strict=True))
            if any(set(row) != {1} for row in fields_):
                index[".".join(map(str, key))] = [
                    -1 if set(row) == {1} else rows.setdefault(row, len(rows)) for row in fields_
                ]

    answer.run(compare, lambda: answer.text(now[0]))
    return {"rows": list(rows), "index": index}


def _ratios(got: DecodeStep, right: DecodeStep, B: int, gpu: Gpu) -> tuple[float, ...]:
    """Bytes and FLOPs over the right ones, and every later field over what follows from the learner's own earlier ones.

    A mistake in the bytes then is one difference, not five.
    """
    follows = (
        (got.n_bytes, right.n_bytes),
        (got.flops, right.flops),
        (got.t_memory, got.n_bytes / gpu.bandwidth),
        (got.t_compute, got.flops / gpu.peak_flops),
        (got.t_step, max(got.t_memory, got.t_compute)),
        (got.tokens_per_s, B / got.t_step),
    )
    ratios = (1 if math.isclose(a, b, rel_tol=1e-9) else float(f"{a / b:.4g}") for a, b in follows)
    return (*ratios, 1 if (got.bound == "compute") == (got.t_compute > got.t_memory) else -1)


# --- the first state, as text and as a still picture ------------------------------------------------------


def _readings(step: DecodeStep, cfg: ModelConfig, gpu: Gpu) -> list[tuple[str, str]]:
    return [
        ("Step time = TPOT", still.milliseconds(step.t_step)),
        ("Tokens/s", still.three(step.tokens_per_s)),
        ("FLOP/byte vs ridge", f"{still.three(step.flops / step.n_bytes)} vs {still.fixed(gpu.ridge_point)}"),
        ("Bound by", step.bound),
        ("Sequences that fit", still.fixed(stops(GRIDS[0], START["C"], cfg, gpu)[-1])),
    ]


def _still(points: dict[int, DecodeStep], cfg: ModelConfig, gpu: Gpu) -> str:
    """Time bars and the trade-off curve of the first state."""
    step = points[START["B"]]
    t_weights = min(cfg.n_params * cfg.bytes_per_weight / gpu.bandwidth, step.t_memory)
    marks = still.ticks(max(p.t_step for p in points.values()) * 1e3)
    at = still.linear(0, marks[-1], 0, 310)
    svg = still.text(0, 12, "Time of one step: the longer bar (ms)", "head")
    for t in marks:
        svg += still.line(at(t), 24, at(t), 130, "rule") + still.text(at(t), 145, still.fixed(t), "soft", "middle")
    svg += still.rect(0, 46, at(t_weights * 1e3), 24, "blue")
    svg += still.rect(at(t_weights * 1e3), 46, at((step.t_memory - t_weights) * 1e3), 24, "orange")
    svg += still.rect(0, 98, at(step.t_compute * 1e3), 24, "green")
    svg += still.line(at(step.t_step * 1e3), 46, at(step.t_step * 1e3), 130, "mark")
    weights, caches = still.milliseconds(t_weights), still.milliseconds(step.t_memory - t_weights)
    svg += still.keys(0, 38, [("blue", f"weights {weights}"), ("orange", f"caches {caches}")])
    svg += still.keys(0, 90, [("green", f"compute {still.milliseconds(step.t_compute)}")])

    ys = still.ticks(max(p.tokens_per_s for p in points.values()))
    at, up = still.linear(0, marks[-1], 400, 650), still.linear(0, ys[-1], 130, 30)
    svg += still.text(350, 12, "Every batch: tokens/s against TPOT (ms)", "head")
    for v in ys:
        svg += still.line(400, up(v), 650, up(v), "rule") + still.text(394, up(v) + 4, still.fixed(v), "soft", "end")
    for v in marks:
        svg += still.text(at(v), 145, still.fixed(v), "soft", "middle")
    places = [(at(p.t_step * 1e3), up(p.tokens_per_s)) for p in points.values()]
    svg += still.path(places, "curve") + "".join(still.dot(x, y, 3.5, "blue dot") for x, y in places)
    x, y = places[list(points).index(START["B"])]
    return svg + still.dot(x, y, 7, "orange dot") + still.text(x + 12, y + 12, f"B = {START['B']}", "bold")


def _says(points: dict[int, DecodeStep], right: DecodeStep, yours: dict[str, Any] | None) -> str:
    one, step = points[min(points)], points[START["B"]]
    if yours and yours["index"]:
        shown, expected = still.milliseconds(step.t_step), still.milliseconds(right.t_step)
        return f"Solid: your decode_step, {shown} here. Dashed: the reference, {expected}."
    slower, more = still.three(step.t_step / one.t_step), still.three(step.tokens_per_s / one.tokens_per_s)
    words = f"{START['B']} sequences together: {slower} times the step time of one, {more} times the tokens/s."
    return words + (" Drawn with your decode_step." if yours else "")
