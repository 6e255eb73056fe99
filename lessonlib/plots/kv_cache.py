"""Pictures of lesson 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lessonlib.models import ModelConfig
from lessonlib.plots.style import BLUE, COLOURS, GREEN, GREY, ORANGE, VERMILION, picture
from lessonlib.reference import kv_bytes_per_token

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MaxBatch = Callable[[float, int, ModelConfig], int]


def batch_by_context(max_batch: MaxBatch, configs: Sequence[tuple[str, ModelConfig]], m_kv: float) -> None:
    """B_max against context, one line per model and cache format, drawn with the learner's function.

    Args:
        max_batch: the learner's function.
        configs: pairs of a label and a model.
        m_kv: bytes for the cache.
    """
    contexts = np.unique(np.geomspace(256, 131072, 60).astype(int))
    last_fit = {label: max_batch(m_kv, 131072, cfg) for label, cfg in configs}
    most = max(last_fit, key=lambda label: last_fit[label])
    takeaway = f"at 131,072 tokens {most} still fits {last_fit[most]} sequences; every line falls as 1/C."
    with picture(takeaway) as (ax,):
        for (label, cfg), colour in zip(configs, COLOURS, strict=False):
            batches = [max_batch(m_kv, int(C), cfg) for C in contexts]
            drawn = [(C, B) for C, B in zip(contexts, batches, strict=True) if B >= 1]
            if drawn:
                ax.plot(*zip(*drawn, strict=True), color=colour, lw=2)
                ax.annotate(label, drawn[0], xytext=(-6, 0), textcoords="offset points", ha="right", va="center",
                            color=colour, fontsize=9)  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="context C (tokens per sequence)", ylabel="B_max (sequences)")
        ax.set_xlim(16, 140000)
        ax.set_xticks([256, 1024, 4096, 16384, 131072], ["256", "1,024", "4,096", "16,384", "131,072"])
        ax.set_title(f"Sequences that fit in {m_kv / 1e9:g} GB", loc="left")


def memory_split(cfg: ModelConfig, memory: float, runtime: float, C: int, batches: Sequence[int]) -> None:
    """How a GPU's memory fills as sequences join: weights, runtime, caches.

    Args:
        cfg: the model.
        memory: bytes of the GPU.
        runtime: bytes for activations and runtime buffers.
        C: tokens per sequence.
        batches: batch sizes to draw, one bar each.
    """
    weights = cfg.n_params * cfg.bytes_per_weight
    per_sequence = C * kv_bytes_per_token(cfg)
    caches = np.array(batches) * per_sequence
    over = [B for B, cache in zip(batches, caches, strict=True) if weights + runtime + cache > memory]
    takeaway = f"the weights are one constant bar; the caches grow by {per_sequence / 1e9:.2f} GB per sequence" + (
        f", and {min(over)} sequences do not fit." if over else "."
    )
    with picture(takeaway, height=2.8) as (ax,):
        y = np.arange(len(batches))
        ax.barh(y, weights / 1e9, color=COLOURS[0])
        ax.barh(y, runtime / 1e9, left=weights / 1e9, color="#bbbbbb")
        ax.barh(y, caches / 1e9, left=(weights + runtime) / 1e9, color=GREEN, hatch="//", edgecolor="white")
        ax.axvline(memory / 1e9, color=ORANGE, lw=2)
        ax.text(memory / 1e9, -0.75, f" {memory / 1e9:g} GB", color="#8a5a00", va="center")
        ax.text(weights / 2e9, -0.75, "weights", ha="center", va="center", color=COLOURS[0])
        ax.text((weights + runtime / 2) / 1e9, -0.75, "other", ha="center", va="center", color=GREY)
        ax.text((weights + runtime) / 1e9 + 1, -0.75, "KV caches", va="center", color="#00664b")
        ax.set_yticks(y, [f"B = {B}" for B in batches])
        ax.set_ylim(len(batches) - 0.4, -1.2)
        ax.set(xlabel="GB of GPU memory")


def prefill_and_decode(prompt: Sequence[str], output: Sequence[str]) -> None:
    """Which token is computed in which step, and what stands in the cache by then.

    Args:
        prompt: tokens of the prompt, all computed in the first step.
        output: tokens that the model writes, one per step.
    """
    takeaway = (
        f"prefill computes all {len(prompt)} prompt tokens in one pass; each later step computes one token and reads "
        "everything to its left from the cache."
    )
    tokens = [*prompt, *output]
    with picture(takeaway, height=0.42 * len(output) + 1.3) as (ax,):
        for step in range(len(output)):
            n_cached = 0 if step == 0 else len(prompt) + step - 1
            n_new = len(prompt) if step == 0 else 1
            for i in range(n_cached):
                _token(ax, i, step, tokens[i], "#dbe9f4", BLUE)
            for i in range(n_cached, n_cached + n_new):
                _token(ax, i, step, tokens[i], BLUE if step == 0 else VERMILION, "white")
            ax.text(n_cached + n_new + 0.15, step, f"→ {output[step]}", va="center", color="#222222")
            ax.text(-0.2, step, "prefill" if step == 0 else f"decode {step}", va="center", ha="right", color="#222222")
        ax.text(0, -1, "dark: computed in one pass, and cached", color=BLUE, va="center")
        ax.text(len(prompt) - 1, len(output), "pale: read from the cache", color=BLUE, ha="right", va="center")
        ax.text(len(prompt), len(output), "orange: computed now", color=VERMILION, va="center")
        ax.set(xlim=(-1.6, len(tokens) + 0.6), ylim=(len(output) + 0.5, -1.5))
        ax.axis("off")


def _token(ax: Axes, i: int, step: int, text: str, face: str, ink: str) -> None:
    ax.barh(step, 0.94, left=i, height=0.8, color=face)
    ax.text(i + 0.47, step, text, ha="center", va="center", color=ink, fontsize=9)


def size_by_kind(sizes: dict[str, float], C: int) -> None:
    """Bytes of one sequence's cache, one bar per model.

    Args:
        sizes: label -> bytes.
        C: tokens in the sequence.
    """
    ordered = sorted(sizes.items(), key=lambda item: item[1])
    takeaway = (
        f"at {C:,} tokens {ordered[-1][0]} caches {ordered[-1][1] / ordered[0][1]:,.0f} times the bytes of "
        f"{ordered[0][0]}."
    )
    with picture(takeaway, height=0.3 * len(ordered) + 0.9) as (ax,):
        y = np.arange(len(ordered))
        values = np.array([size for _, size in ordered]) / 2**30
        ax.barh(y, values, color=BLUE)
        for i, value in enumerate(values):
            ax.text(value + values[-1] * 0.01, i, f"{value:,.2f}", va="center", color="#222222", fontsize=9)
        ax.set_yticks(y, [label for label, _ in ordered])
        ax.set(xlabel=f"GiB of cache for one sequence of {C:,} tokens", xlim=(0, values[-1] * 1.12))
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", color=GREY)
