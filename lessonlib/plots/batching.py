"""Pictures of lesson 5."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.plots.style import BLUE, COLOURS, GREEN, GREY, ORANGE, VERMILION, picture
from lessonlib.records import BatchingResult, Policy, Request
from lessonlib.reference import simulate as reference
from lessonlib.simulator import RooflineCost

Simulate = Callable[[Sequence[Request], int, Policy], BatchingResult]
POLICIES: tuple[Policy, Policy] = ("static", "continuous")


def schedules(requests: Sequence[Request], n_slots: int, simulate: Simulate = reference) -> None:
    """Who is in which slot at which step, static above continuous on one time axis.

    Args:
        requests: what is run; few and short enough to number each cell.
        n_slots: slots.
        simulate: the learner's function, or the reference.
    """
    results = {policy: simulate(requests, n_slots, policy) for policy in POLICIES}
    idle = {policy: round((1 - result.slot_use) * result.n_steps * n_slots) for policy, result in results.items()}
    takeaway = (
        f"static takes {results['static'].n_steps} steps with {idle['static']} idle cells, continuous "
        f"{results['continuous'].n_steps} with {idle['continuous']}; the mean latency is "
        f"{results['static'].mean_latency:g} against {results['continuous'].mean_latency:g} steps."
    )
    n_steps = max(result.n_steps for result in results.values())
    with picture(takeaway, height=0.6 * n_slots + 1.3) as (ax,):
        for i, (policy, result) in enumerate(results.items()):
            top = i * (n_slots + 0.9)
            ax.text(0, top - 0.75, policy, ha="left", va="center", fontsize=10, weight="bold", color="#222222")
            for t, row in enumerate(np.asarray(result.schedule)):
                for s, request in enumerate(row):
                    first = request >= 0 and (t == 0 or request not in np.asarray(result.schedule)[t - 1])
                    face = "#f4f4f4" if request < 0 else ORANGE if first else BLUE
                    ax.barh(top + s, 0.94, left=t, height=0.86, color=face)
                    if request >= 0:
                        ink = "black" if first else "white"
                        ax.text(t + 0.47, top + s, str(request), ha="center", va="center", color=ink, fontsize=9)
            for s in range(n_slots):
                ax.text(-0.15, top + s, f"slot {s}", ha="right", va="center", fontsize=8.5, color=GREY)
        bottom = 2 * n_slots + 0.9
        ax.text(
            0, bottom - 0.1, "orange: prefill, the first step    blue: decode    grey: idle", va="center", fontsize=9
        )
        ax.set(xlim=(-1.2, max(n_steps, 8)), ylim=(bottom + 0.4, -1.2))
        ax.axis("off")


def step_with_chunk(cfg: ModelConfig, gpu: Gpu, n_decodes: int, C: int, slo: float) -> None:
    """Time of a decode step that also carries a chunk of a prompt, against the size of the chunk.

    Args:
        cfg: the model.
        gpu: the GPU.
        n_decodes: sequences that decode in the step.
        C: cached tokens of each of them.
        slo: TPOT that the users were promised, seconds.
    """
    chunks = np.unique(np.geomspace(1, 32768, 120).astype(int))
    peak, half = RooflineCost(cfg, gpu), RooflineCost(cfg, gpu, 0.5)
    lines = [
        ("at peak", peak, BLUE, "-", (6, -12), "left"),
        ("at 50% of peak", half, VERMILION, "--", (-8, 4), "right"),
    ]
    alone, whole = (peak.step(n_decodes, n_decodes * C, part) for part in ([], [(32768, 0)]))
    # A chunk's own cache is written, too: 0.5% is left for that.
    free = [
        max(T for T in range(1, 2048) if cost.step(n_decodes, n_decodes * C, [(T, 0)]) < 1.005 * alone)
        for _, cost, *_ in lines
    ]
    takeaway = (
        f"with attention counted, {free[0]} tokens ride along at peak without making the step longer, and {free[1]} at "
        f"50% of it; 32,768 in one piece take {whole / alone:.0f} times as long as a plain step."
    )
    with picture(takeaway) as (ax,):
        for label, cost, colour, style, place, side in lines:
            times = [cost.step(n_decodes, n_decodes * C, [(int(T), 0)]) * 1e3 for T in chunks]
            ax.plot(chunks, times, color=colour, ls=style, lw=2)
            at = (4096, float(np.interp(4096, chunks, times)))
            ax.annotate(label, at, xytext=place, textcoords="offset points", ha=side, color=colour, fontsize=9)
        ax.axhline(slo * 1e3, color=GREY, lw=1.2, ls=":")
        ax.text(1, slo * 1e3 * 1.1, f"SLO: TPOT {slo * 1e3:g} ms", color=GREY, fontsize=9)
        ax.set(xscale="log", yscale="log", xlabel="prompt tokens in the step", ylabel="step time (ms)")
        ax.set_xticks([1, 16, 128, 512, 2048, 8192, 32768], ["1", "16", "128", "512", "2,048", "8,192", "32,768"])
        ax.set_yticks([5, 10, 50, 100, 500, 1000], ["5", "10", "50", "100", "500", "1,000"])
        ax.minorticks_off()
        ax.set_title(f"{n_decodes} sequences of {C:,} tokens decode, and a chunk rides along", loc="left")


def goodput_by_rate(rates: Sequence[float], shares: dict[str, Sequence[float]], ttft: float, tpot: float) -> None:
    """Requests per second that meet their SLO, against requests per second that come.

    Args:
        rates: arrivals per second.
        shares: label -> share of the requests that met the SLO, at each of the rates.
        ttft: the SLO's TTFT, seconds.
        tpot: the SLO's TPOT, seconds.
    """
    goodput = {label: np.array(rates) * met for label, met in shares.items()}
    takeaway = (
        "most requests/s within the SLO: "
        + ", ".join(f"{label} {values.max():.1f}" for label, values in goodput.items())
        + ". Beyond that the queue grows, and fewer requests meet the SLO, not more."
    )
    with picture(takeaway, height=3.4) as (ax,):
        ax.plot(rates, rates, color=GREY, lw=1.2, ls=":")
        ax.text(rates[-1], rates[-1], "  all met", color=GREY, va="center", fontsize=9)
        for (label, values), colour, marker in zip(goodput.items(), COLOURS, "os^D", strict=False):
            ax.plot(rates, values, color=colour, lw=2, marker=marker, ms=5)
            ax.text(rates[-1], values[-1], f"  {label}", color=colour, va="bottom", fontsize=9)
        ax.set(xlabel="arrivals (requests/s)", ylabel="goodput (requests/s)", ylim=(0, None))
        ax.set_xlim(rates[0] - 0.5, rates[-1] + 0.22 * (rates[-1] - rates[0]))
        ax.set_title(f"SLO: TTFT ≤ {ttft:g} s and TPOT ≤ {tpot * 1e3:g} ms", loc="left")


def tail(values: dict[str, np.ndarray], what: str) -> None:
    """How many requests saw at least so long a wait: the tail of a distribution, on log axes.

    Args:
        values: label -> one wait per request, seconds.
        what: name of the wait.
    """
    p99 = {label: float(np.percentile(waits, 99)) * 1e3 for label, waits in values.items()}
    takeaway = "the 99th percentile is " + ", ".join(f"{t:,.0f} ms ({label})" for label, t in p99.items()) + "."
    with picture(takeaway, height=3.2) as (ax,):
        for (label, waits), colour, style in zip(
            values.items(), (VERMILION, BLUE, GREEN), ("--", "-", ":"), strict=False
        ):
            ordered = np.sort(waits)[::-1] * 1e3
            share = np.arange(1, len(ordered) + 1) / len(ordered) * 100
            ax.step(ordered, share, color=colour, ls=style, lw=2, label=label)
        ax.set(xscale="log", yscale="log", xlabel=f"{what} (ms)", ylabel="% of requests that waited longer")
        ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        ax.set_xticks([5, 10, 50, 100, 500, 1000], ["5", "10", "50", "100", "500", "1,000"])
        ax.minorticks_off()
        ax.legend(fontsize=9)
