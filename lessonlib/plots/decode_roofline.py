"""Pictures of lesson 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.plots.style import BLUE, COLOURS, GREEN, GREY, ORANGE, VERMILION, picture
from lessonlib.records import DecodeStep
from lessonlib.reference import max_batch

Step = Callable[[int, int, ModelConfig, Gpu], DecodeStep]


def on_the_roofline(decode_step: Step, cfg: ModelConfig, gpu: Gpu, contexts: Sequence[int]) -> None:
    """Decode steps of growing batch on the roofline: intensity against FLOP/s, one line per context.

    Args:
        decode_step: the learner's function.
        cfg: the model.
        gpu: the GPU.
        contexts: values of C, one line each.
    """
    batches = 2 ** np.arange(11)
    last = {C: decode_step(int(batches[-1]), C, cfg, gpu) for C in contexts}
    reach = {C: step.flops / step.n_bytes for C, step in last.items()}
    short, long = min(contexts), max(contexts)
    takeaway = (
        f"at B = {batches[-1]:,} a context of {short:,} reaches {reach[short]:.0f} FLOP/byte, beyond the ridge at "
        f"{gpu.ridge_point:.0f}; one of {long:,} stays at {reach[long]:.0f}, however large the batch."
    )
    with picture(takeaway, height=4) as (ax,):
        x = np.geomspace(0.7, 1500, 200)
        ax.plot(x, np.minimum(x * gpu.bandwidth, gpu.peak_flops) / 1e12, color=GREY, lw=2)
        ax.axvline(gpu.ridge_point, color=GREY, ls=":", lw=1)
        ax.text(gpu.ridge_point, 1.1, f" ridge {gpu.ridge_point:.0f}", color=GREY, fontsize=9)
        for C, colour, marker in zip(contexts, COLOURS, "os^Dv", strict=False):
            steps = [decode_step(int(B), C, cfg, gpu) for B in batches]
            points = [(s.flops / s.n_bytes, s.flops / s.t_step / 1e12) for s in steps]
            ax.plot(*zip(*points, strict=True), color=colour, marker=marker, ms=5, lw=0, label=f"C = {C:,}")
            ax.annotate(f"B = {batches[-1]:,}", points[-1], xytext=(6, -13), textcoords="offset points", color=colour,
                        fontsize=9)  # fmt: skip
        one = decode_step(1, short, cfg, gpu)
        ax.annotate("B = 1", (one.flops / one.n_bytes, one.flops / one.t_step / 1e12), xytext=(6, -13),
                    textcoords="offset points", fontsize=9)  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="intensity (FLOP per byte)", ylabel="speed (TFLOP/s)")
        ax.set_title(f"{cfg.name} on {gpu.name}: B = 1, 2, 4, … {batches[-1]:,}", loc="left")
        ax.legend(loc="upper left")


def throughput_and_tpot(
    decode_step: Step, cfg: ModelConfig, gpu: Gpu, contexts: Sequence[int], m_kv: float, slo: float
) -> None:
    """Tokens per second against the time per output token, as the batch grows, up to what fits in memory.

    Args:
        decode_step: the learner's function.
        cfg: the model.
        gpu: the GPU.
        contexts: values of C, one line each.
        m_kv: bytes for the cache.
        slo: longest acceptable time per output token, seconds.
    """
    fits = {C: max_batch(m_kv, C, cfg) for C in contexts}
    ends = {C: decode_step(fits[C], C, cfg, gpu) for C in contexts}
    longest = max(contexts)
    takeaway = (
        f"every line ends where memory is full, at about {ends[longest].t_step * 1e3:.0f} ms for C = {longest:,}; that "
        f"batch of {fits[longest]} gives {ends[longest].tokens_per_s:,.0f} tokens/s."
    )
    with picture(takeaway, height=4) as (ax,):
        for C, colour, marker in zip(contexts, COLOURS, "os^Dv", strict=False):
            B = np.unique(np.geomspace(1, fits[C], 40).astype(int))
            steps = [decode_step(int(b), C, cfg, gpu) for b in B]
            ax.plot([s.t_step * 1e3 for s in steps], [s.tokens_per_s for s in steps], color=colour, lw=2)
            marked = [decode_step(b, C, cfg, gpu) for b in (1, 8, 64) if b <= fits[C]] + [ends[C]]
            ax.plot([s.t_step * 1e3 for s in marked], [s.tokens_per_s for s in marked], marker, color=colour, ms=6)
            end = (ends[C].t_step * 1e3, ends[C].tokens_per_s)
            ax.annotate(f"C = {C:,}, B = {fits[C]:,}", end, xytext=(7, 0), textcoords="offset points", va="center",
                        color=colour, fontsize=9)  # fmt: skip
        ax.axvline(slo * 1e3, color=ORANGE, lw=2)
        ax.text(
            slo * 1e3, 0.03, f" SLO {slo * 1e3:g} ms", color="#8a5a00", fontsize=9, transform=ax.get_xaxis_transform()
        )
        right = max(step.t_step for step in ends.values()) * 1e3
        ax.set(yscale="log", xlabel="time per output token (ms)", ylabel="tokens/s of the whole batch")
        ax.set_xlim(0, max(right, slo * 1e3) * 1.32)
        ax.set_title("Marks: B = 1, 8, 64, and the largest that fits", loc="left")


def formats(decode_step: Step, cfgs: dict[str, ModelConfig], gpu: Gpu, C: int, batches: Sequence[int]) -> None:
    """Time that the weights and the caches take to read, one pair of bars per number format and batch.

    Args:
        decode_step: the learner's function.
        cfgs: label -> the model in those formats.
        gpu: the GPU.
        C: tokens per sequence.
        batches: batch sizes, one panel each.
    """
    small, large = min(batches), max(batches)
    base, *_, best = cfgs
    gains = {B: decode_step(B, C, cfgs[base], gpu).t_step / decode_step(B, C, cfgs[best], gpu).t_step for B in batches}
    takeaway = (
        f"from {base} to {best} a step gets {gains[small]:.1f} times faster at B = {small} and {gains[large]:.1f} "
        f"times at B = {large}: there the caches decide."
    )
    with picture(takeaway, height=2.6, columns=len(batches)) as axes:
        for ax, B in zip(axes, batches, strict=True):
            y = np.arange(len(cfgs))
            weights = np.array([c.n_params * c.bytes_per_weight for c in cfgs.values()]) / gpu.bandwidth * 1e3
            total = np.array([decode_step(B, C, c, gpu).t_memory for c in cfgs.values()]) * 1e3
            compute = np.array([decode_step(B, C, c, gpu).t_compute for c in cfgs.values()]) * 1e3
            ax.barh(y, weights, color=BLUE, label="read weights")
            ax.barh(y, total - weights, left=weights, color=GREEN, hatch="//", edgecolor="white", label="read caches")
            ax.plot(compute, y, "D", color=VERMILION, label="compute", ms=6)
            ax.set_yticks(y, list(cfgs) if ax is axes[0] else [""] * len(cfgs))
            ax.invert_yaxis()
            ax.set(xlabel="ms", title=f"B = {B}, C = {C:,}")
        axes[-1].legend(fontsize=8, loc="lower right")
