"""Pictures of lesson 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.plots.style import BLUE, COLOURS, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, picture
from lessonlib.roofline import prefill_seconds, transfer_seconds
from lessonlib.waste import Shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALE = {BLUE: "#b9d9ec", VERMILION: "#f5cfb0", GREEN: "#b5e0d3"}


def contiguous(requests: Sequence[tuple[str, int, int, int, int]], capacity: int, waiting: tuple[str, int]) -> None:
    """One row of memory slots with contiguous buffers, and the three kinds of waste in it.

    Args:
        requests: name, first slot, buffer size, tokens so far, tokens still to come; at most three.
        capacity: slots in all.
        waiting: name and buffer size of a request that waits.
    """
    used = sum(n for *_, n, _ in requests)
    later = sum(n for *_, n in requests)
    internal = sum(size for _, _, size, _, _ in requests) - used - later
    free = capacity - used - later - internal
    takeaway = (
        f"{used} of {capacity} slots hold a token, {later} wait for one, {internal} never will, and {free} free ones "
        f"lie in gaps too small for {waiting[0]}, which needs {waiting[1]} in a row."
    )
    with picture(takeaway, height=1.7) as (ax,):
        for i in range(capacity):
            _slot(ax, i, 0, "#f4f4f4", "")
        for (name, first, size, so_far, to_come), colour in zip(requests, (BLUE, VERMILION, GREEN), strict=False):
            for i in range(size):
                if i < so_far:
                    _slot(ax, first + i, 0, colour, "")
                elif i < so_far + to_come:
                    _slot(ax, first + i, 0, PALE[colour], "·")
                else:
                    _slot(ax, first + i, 0, "white", "×")
            ax.text(first + size / 2, -0.75, name, ha="center", color=colour, fontsize=10)
        ax.text(0, 1.15, "dark: holds a token     · reserved for later     × never used     grey: gap", fontsize=9)
        ax.set(xlim=(-0.3, capacity + 0.3), ylim=(1.5, -1.1))
        ax.axis("off")


def blocks(pool: Any, names: Sequence[Any], block_size: int, columns: int = 8) -> None:
    """The physical blocks of an allocator: who holds which, how full, and where one is shared.

    Args:
        pool: a block allocator, the learner's.
        names: sequences to show, in this order of colours.
        block_size: slots in a block.
        columns: blocks side by side.
    """
    n_blocks = len(pool.ref_counts)
    holders: dict[int, list[Any]] = {}
    filled: dict[int, int] = {}
    for name in names:
        for i, block in enumerate(pool.block_tables[name]):
            holders.setdefault(block, []).append(name)
            filled[block] = max(filled.get(block, 0), min(block_size, pool.lengths[name] - i * block_size))
    shared = sum(len(held) > 1 for held in holders.values())
    takeaway = f"{len(holders)} of {n_blocks} blocks are held, {shared} of them by more than one sequence."
    rows = -(-n_blocks // columns)
    with picture(takeaway, height=0.62 * rows + 0.5) as (ax,):
        for block in range(n_blocks):
            x, y = block % columns * (block_size + 1), block // columns * 1.6
            held = holders.get(block, [])
            colour = GREY if len(held) > 1 else COLOURS[list(names).index(held[0]) % 6] if held else "#f4f4f4"
            for i in range(block_size):
                _slot(ax, x + i, y, colour if i < filled.get(block, 0) else "white" if held else "#f4f4f4", "")
            who = ", ".join(map(str, held)) + (f"  ×{len(held)}" if len(held) > 1 else "")
            ax.text(x, y - 0.62, f"{block}  {who}", fontsize=8, color="#222222")
        ax.set(xlim=(-0.5, columns * (block_size + 1)), ylim=(rows * 1.6 - 0.6, -1.1))
        ax.axis("off")


def _slot(ax: Axes, x: float, y: float, face: str, mark: str) -> None:
    ax.barh(y, 0.9, left=x, height=0.8, color=face, edgecolor="#9a9a9a", linewidth=0.6)
    if mark:
        ax.text(x + 0.45, y, mark, ha="center", va="center", fontsize=10, color="#333333")


def where_memory_goes(shares: dict[str, Shares]) -> None:
    """Stacked shares of a KV memory under load, one bar per way of giving it out.

    Args:
        shares: label -> measured shares.
    """
    best = max(shares, key=lambda label: shares[label].used)
    worst = min(shares, key=lambda label: shares[label].used)
    takeaway = (
        f"{shares[best].used:.0%} of the memory holds tokens with {best}, {shares[worst].used:.0%} with {worst}; "
        f"{shares[best].running:.0f} requests run in place of {shares[worst].running:.0f}."
    )
    parts = [("used", BLUE, ""), ("reserved", SKY, ".."), ("internal", ORANGE, "//"), ("idle", "#d9d9d9", "")]
    labels = {"used": "holds a token", "reserved": "reserved for later", "internal": "never used", "idle": "idle"}
    with picture(takeaway, height=0.45 * len(shares) + 1.3) as (ax,):
        y, left = np.arange(len(shares)), np.zeros(len(shares))
        for part, colour, hatch in parts:
            values = np.array([getattr(share, part) for share in shares.values()]) * 100
            ax.barh(y, values, left=left, color=colour, hatch=hatch, edgecolor="white", label=labels[part])
            left += values
        for i, share in enumerate(shares.values()):
            inside = share.used > 0.2
            ax.text(share.used * 50 if inside else 102, i, f"{share.used:.0%}", va="center",
                    ha="center" if inside else "left", color="white" if inside else BLUE)  # fmt: skip
        ax.set_yticks(y, list(shares))
        ax.invert_yaxis()
        ax.set(xlabel="% of the slots, mean over time", xlim=(0, 110))
        ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1), fontsize=9)
        ax.grid(axis="y", visible=False)


def swap_or_recompute(cfg: ModelConfig, gpu: Gpu, links: dict[str, float]) -> None:
    """Time to bring a preempted sequence back, by swapping over a link or by prefill, against its length.

    Args:
        cfg: the model.
        gpu: the GPU.
        links: label -> bytes/s, one way.
    """
    T = np.unique(np.geomspace(16, 32768, 60).astype(int))
    again = np.array([prefill_seconds(int(t), cfg, gpu) for t in T]) * 1e3
    name, link = max(links.items(), key=lambda item: item[1])
    swap = transfer_seconds(1500, cfg, link) * 1e3
    floor = prefill_seconds(1, cfg, gpu)
    takeaway = (
        f"1,500 tokens come back in {swap:.1f} ms over {name} and in {prefill_seconds(1500, cfg, gpu) * 1e3:.0f} ms "
        f"by a prefill at peak, which never takes less than one read of the weights, {floor * 1e3:.1f} ms."
    )
    with picture(takeaway) as (ax,):
        ax.plot(T, again, color=VERMILION, lw=2)
        ax.text(T[-1] * 1.1, again[-1], "recompute", color=VERMILION, va="center", fontsize=9)
        for (label, bandwidth), colour, style in zip(
            links.items(), (BLUE, GREEN, PURPLE), ("-", "--", ":"), strict=False
        ):
            times = np.array([transfer_seconds(int(t), cfg, bandwidth) for t in T]) * 1e3
            ax.plot(T, times, color=colour, ls=style, lw=2)
            ax.text(T[-1] * 1.1, times[-1], f"swap, {label}", color=colour, va="center", fontsize=9)
        ax.set(xscale="log", yscale="log", xlabel="tokens in the cache", ylabel="ms", xlim=(16, 300000))
        ax.set_xticks([16, 128, 1024, 8192, 32768], ["16", "128", "1,024", "8,192", "32,768"])
        ax.set_title(f"Bringing a sequence of {cfg.name} back, {gpu.name}", loc="left")
