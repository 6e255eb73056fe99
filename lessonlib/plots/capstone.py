"""Pictures of the capstone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.ticker import LogLocator, StrMethodFormatter

from lessonlib.plots.style import BLUE, COLOURS, GREEN, GREY, ORANGE, VERMILION, picture
from lessonlib.serving import StepRecord


def slots(block_table: Sequence[int], block_size: int, length: int, n_blocks: int) -> None:
    """A pool as one row of slots, with the tokens of one sequence in theirs.

    Args:
        block_table: the sequence's physical blocks.
        block_size: tokens per block.
        length: tokens of the sequence.
        n_blocks: blocks to draw.
    """
    takeaway = (
        f"{length} tokens in the blocks {', '.join(map(str, block_table))}: neighbours in the sequence need not be "
        f"neighbours in the pool, and the last block has {len(block_table) * block_size - length} slots to spare."
    )
    position = {
        block_table[p // block_size] * block_size + p % block_size: p for p in range(length)
    }  # slot -> position
    with picture(takeaway, height=1.5) as (ax,):
        for slot in range(n_blocks * block_size):
            taken, mine = slot in position, slot // block_size in block_table
            face = BLUE if taken else "#dbe9f4" if mine else "white"
            ax.barh(0, 0.9, left=slot, height=0.8, color=face, edgecolor="#9a9a9a", lw=0.6)
            if taken:
                ax.text(slot + 0.45, 0, str(position[slot]), ha="center", va="center", color="white", fontsize=8)
        for block in range(n_blocks):
            ax.text((block + 0.5) * block_size, -0.75, f"block {block}", ha="center", va="center", fontsize=8)
            ax.axvline(block * block_size - 0.05, ymin=0.2, ymax=0.95, color="#222222", lw=0.8)
        ax.set(xlim=(-0.5, n_blocks * block_size + 0.5), ylim=(-1.1, 0.6))
        ax.axis("off")


def occupancy(steps: Sequence[StepRecord]) -> None:
    """Running and waiting requests, and the share of the pool in use, step by step.

    Args:
        steps: `metrics.steps` of an engine.
    """
    running, waiting = [s.n_running for s in steps], [s.n_waiting for s in steps]
    use = np.array([s.kv_use for s in steps])
    takeaway = (
        f"while requests waited, {use[np.array(waiting) > 0].mean():.0%} of the pool was in use on average, "
        f"{use.max():.0%} at most; afterwards {use[np.array(waiting) == 0].mean():.0%}."
    )
    with picture(takeaway, height=2.8, columns=2) as (left, right):
        left.step(range(len(steps)), running, color=BLUE, lw=2, where="mid")
        left.step(range(len(steps)), waiting, color=VERMILION, lw=2, where="mid")
        left.text(len(steps) * 0.98, max(running) + 0.8, "running", color=BLUE, ha="right")
        left.text(len(steps) * 0.1, max(waiting) * 0.92, "waiting", color=VERMILION)
        left.set(xlabel="step", ylabel="requests")
        right.fill_between(range(len(steps)), 100 * use, color=GREEN, alpha=0.35)
        right.plot(100 * use, color=GREEN, lw=2)
        right.set(xlabel="step", ylabel="KV blocks in use (%)", ylim=(0, 105))


def steps_against_roofline(measured: Mapping[tuple[int, int], float], predicted: Callable[[int, int], float]) -> None:
    """Measured step times as points, the roofline as lines, over batch, one colour per context.

    Args:
        measured: (B, C) -> seconds.
        predicted: B, C -> seconds, the bound.
    """
    contexts = sorted({C for _, C in measured})
    ratios = [seconds / predicted(B, C) for (B, C), seconds in measured.items()]
    takeaway = f"measured steps take {min(ratios):.2f} to {max(ratios):.2f} times the bound of the roofline."
    with picture(takeaway, height=3.2) as (ax,):
        for C, colour in zip(contexts, COLOURS, strict=False):
            batches = sorted(B for B, c in measured if c == C)
            ax.plot(batches, [predicted(B, C) * 1e3 for B in batches], color=colour, lw=2)
            ax.plot(batches, [measured[B, C] * 1e3 for B in batches], "o", color=colour)
            ax.annotate(f"C = {C}", (batches[-1], measured[batches[-1], C] * 1e3), xytext=(6, 0),
                        textcoords="offset points", color=colour, va="center")  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="sequences in the step, B", ylabel="step time (ms)")
        ax.set_xticks(batches, [str(B) for B in batches])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.minorticks_off()
        ax.set_xlim(0.9, batches[-1] * 1.9)
        ax.set_title("points: measured, lines: roofline", loc="left", fontsize=10)


def interference(pieces: Mapping[str, tuple[Sequence[float], float]]) -> None:
    """Step times after a long prompt arrives, one line per policy.

    Args:
        pieces: name -> (seconds of each step, TTFT of the long prompt).
    """
    longest = {name: max(seconds) for name, (seconds, _) in pieces.items()}
    worst, best = max(longest, key=lambda n: longest[n]), min(longest, key=lambda n: longest[n])
    takeaway = f"{worst}: the longest step takes {longest[worst] / longest[best]:.1f} times that of {best}."
    with picture(takeaway, height=2.8) as (ax,):
        for (name, (seconds, _)), colour in zip(pieces.items(), (VERMILION, BLUE), strict=False):
            end = np.cumsum(seconds)
            ax.step([0, *end], [seconds[0] * 1e3, *(s * 1e3 for s in seconds)], color=colour, lw=2)
            at = int(np.argmax(seconds))
            ax.annotate(
                name, (float(end[at]), seconds[at] * 1e3), xytext=(6, 2), textcoords="offset points", color=colour
            )
        ax.set(xlabel="seconds since the prompt arrived", ylabel="step time (ms)")
        ax.set_ylim(bottom=0)


def gains(summaries: Mapping[str, Mapping[str, float]]) -> None:
    """Tokens per second and mean TTFT of several servers on one workload.

    Args:
        summaries: name -> `metrics.summary()`.
    """
    names = list(summaries)
    speed = [summaries[name]["tokens_per_s"] for name in names]
    ttft = [summaries[name]["ttft_mean"] for name in names]
    takeaway = (
        f"against {names[0]}, all features together give {speed[-1] / speed[0]:.1f} times the tokens per second, and "
        f"the first token {ttft[0] / ttft[-1]:.1f} times sooner."
    )
    with picture(takeaway, height=0.42 * len(names) + 1.1, columns=2) as (left, right):
        for ax, values, colour, label in ((left, speed, BLUE, "tokens/s"), (right, ttft, ORANGE, "mean TTFT (s)")):
            ax.barh(range(len(names)), values, color=colour)
            for i, value in enumerate(values):
                ax.text(value, i, f" {value:.3g}", va="center", color="#222222", fontsize=9)
            ax.set(xlabel=label, xlim=(0, max(values) * 1.25))
            ax.invert_yaxis()
            ax.grid(axis="y", visible=False)
        left.set_yticks(range(len(names)), names)
        right.set_yticks(range(len(names)), [""] * len(names))
        right.tick_params(axis="y", color=GREY)
