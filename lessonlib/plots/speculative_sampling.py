"""Pictures of lesson 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.plots.style import BLUE, COLOURS, GREEN, GREY, ORANGE, VERMILION, picture
from lessonlib.reference import max_batch
from lessonlib.speculation import batch_gain

Round = Callable[[np.ndarray, np.ndarray, np.random.Generator], Sequence[int]]
PALE = "#dbe9f4"


def round_on_a_clock(drafts: Sequence[str], n_accepted: int, resampled: str, c: float) -> None:
    """The same tokens by plain decoding and by one speculative round, with time in target steps to the right.

    Args:
        drafts: what the draft model proposes.
        n_accepted: how many of them the target keeps, fewer than all.
        resampled: the token in place of the first rejected one.
        c: time of a draft step in target steps.
    """
    emitted = [*drafts[:n_accepted], resampled]
    n, gamma = len(emitted), len(drafts)
    end = gamma * c + 1
    takeaway = (
        f"{gamma} draft steps and one target pass take {end:.1f} target steps and give {n} tokens; plain decoding "
        f"takes {n} steps for them."
    )
    with picture(takeaway, height=3) as (ax,):
        for i, token in enumerate(emitted):
            ax.barh(0, 0.97, left=i, height=0.7, color=BLUE)
            ax.text(i + 0.48, 0, token, ha="center", va="center", color="white")
        for i, token in enumerate(drafts):
            left, kept = i * c, i < n_accepted
            mark, ink = ("✓", BLUE) if kept else ("✗", VERMILION) if i == n_accepted else ("–", GREY)
            ax.barh(1, c * 0.92, left=left, height=0.7, color=PALE if kept else "white", edgecolor=ink)
            ax.text(left + c * 0.46, 1, token, ha="center", va="center", color=ink, rotation=90)
            ax.text(left + c * 0.46, 1.5, mark, ha="center", va="center", color=ink)
        ax.text(end, 1.5, "✓ kept   ✗ rejected   – dropped", ha="left", va="center", color=GREY, fontsize=9)
        ax.barh(1, 0.97, left=gamma * c, height=0.7, color=BLUE)
        ax.text(gamma * c + 0.48, 1, f"scores all, adds\n“{resampled}”", ha="center", va="center", color="white")
        ax.axvline(end, color=GREY, lw=1, ls=":")
        ax.set_yticks([0, 1], ["plain", "one round"])
        ax.set(ylim=(1.7, -0.5), xlim=(-0.03, max(n, end) + 0.1), xlabel="time (target steps)")
        ax.grid(axis="y", visible=False)


def tokens_by_position(speculative_round: Round, p: np.ndarray, q: np.ndarray, n: int = 3000) -> None:
    """Shares of each token at each position over n rounds of the learner's function, beside target and draft.

    Args:
        speculative_round: the learner's function.
        p: target, shape (γ + 1, V).
        q: draft, shape (γ, V).
        n: rounds.
    """
    rng = np.random.default_rng(0)
    V, gamma = p.shape[1], len(q)
    try:
        rounds = [[int(x) for x in speculative_round(p.copy(), q.copy(), rng)] for _ in range(n)]
        shares = [np.bincount([r[i] for r in rounds if len(r) > i], minlength=V)[:V] for i in range(gamma + 1)]
    except (TypeError, ValueError, IndexError) as error:
        print(f"No picture: your function gave no list of tokens ({error}). The check says more.")
        return
    off = max(float(np.abs(s / max(1, s.sum()) - row).max()) for s, row in zip(shares, p, strict=True))
    takeaway = f"over {n:,} rounds of your function the share of a token is off the target p by {off:.3f} at most."
    with picture(takeaway, height=2.9, columns=gamma + 1) as axes:
        for i, ax in enumerate(axes):
            x = np.arange(V)
            if i < gamma:
                ax.bar(x - 0.27, q[i], 0.25, color=ORANGE, label="draft q")
            ax.bar(x, shares[i] / max(1, shares[i].sum()), 0.25, color=BLUE, label="your tokens")
            ax.bar(x + 0.27, p[i], 0.25, color=GREEN, hatch="///", edgecolor="white", label="target p")
            ax.set_title(f"token {i + 1}" + (" (bonus)" if i == gamma else ""), loc="left", fontsize=10)
            ax.set(xticks=x, xlabel="vocabulary", ylim=(0, 1.5 * max(p.max(), q.max() if gamma else 0)))
            ax.grid(axis="x", visible=False)
        axes[0].set_ylabel("probability, share")
        axes[0].legend(fontsize=8, loc="upper left")


def speedup_by_gamma(speedup: Callable[[float, int, float], float], alphas: Sequence[float], c: float) -> None:
    """S against γ, one line per acceptance rate, with the best γ marked, drawn with the learner's function.

    Args:
        speedup: the learner's function.
        alphas: acceptance rates.
        c: time of a draft step / time of a target step.
    """
    gammas = list(range(13))
    lines = {alpha: [float(speedup(alpha, gamma, c)) for gamma in gammas] for alpha in alphas}
    best = {alpha: int(np.argmax(line)) for alpha, line in lines.items()}
    takeaway = f"with c = {c:g} the best draft length is " + ", ".join(f"{best[a]} at α = {a:g}" for a in alphas)
    with picture(takeaway + "; too long a draft costs more than it gains.") as (ax,):
        ax.axhline(1, color=GREY, lw=1, ls="--")
        ax.text(0.1, 0.93, "plain decoding", color=GREY, fontsize=9, va="top")
        for (alpha, line), colour in zip(lines.items(), COLOURS, strict=False):
            ax.plot(gammas, line, color=colour, lw=2, marker="o", ms=3)
            ax.plot(best[alpha], line[best[alpha]], "o", ms=9, mfc="white", mec=colour, mew=2)
            ax.text(gammas[-1] + 0.25, line[-1], f"α = {alpha:g}", va="center")
        ax.set(xlabel="draft length γ (tokens)", ylabel="speed-up S", xticks=gammas, xlim=(-0.2, 13.4))
        ax.set_ylim(bottom=0)
        ax.set_title(f"Speed-up at batch 1, c = {c:g} (rings: the best γ)", loc="left")


def gain_by_batch(
    alpha: float,
    gamma: int,
    contexts: Sequence[int],
    target: ModelConfig,
    draft: ModelConfig,
    gpu: Gpu,
    m_kv: float,
) -> None:
    """Throughput with speculation over throughput without, against the batch, one line per context.

    Args:
        alpha: acceptance rate.
        gamma: draft length.
        contexts: cached tokens per sequence.
        target: the big model.
        draft: the small model.
        gpu: where both run.
        m_kv: bytes for the target's caches; a line is dotted where they do not fit.
    """
    batches = np.unique(np.geomspace(1, 512, 90).astype(int))
    lines = {C: [batch_gain(alpha, gamma, int(B), C, target, draft, gpu) for B in batches] for C in contexts}
    full = gpu.ridge_point / (gamma + 1)
    short = contexts[0]
    lost = next((int(B) for B, gain in zip(batches, lines[short], strict=True) if gain < 1), None)
    takeaway = f"up to B ≈ {full:.0f} the extra positions are nearly free; above, rejected tokens cost arithmetic" + (
        f", and at C = {short:,} speculation loses from B = {lost} on." if lost else "."
    )
    room = {C: max_batch(m_kv, C, target) for C in contexts}
    largest = ", ".join(f"{room[C]:,} sequences at C = {C:,}" for C in contexts)
    takeaway += f" Memory of {m_kv / 1e9:g} GB holds the caches of {largest}."
    with picture(takeaway) as (ax,):
        ax.axhline(1, color=GREY, lw=1, ls="--")
        ax.text(1, 0.97, "no gain", color=GREY, fontsize=9, va="top")
        ax.axvline(full, color=GREY, lw=1)
        ax.text(full * 0.95, 0.15, f"B · (γ + 1) = R = {gpu.ridge_point:.0f}", color=GREY, fontsize=9, ha="right")
        for (C, line), colour in zip(lines.items(), COLOURS, strict=False):
            fits = batches <= room[C]
            ax.plot(batches[fits], np.array(line)[fits], color=colour, lw=2)
            ax.plot(batches, line, color=colour, lw=1.2, ls=":")
            ax.text(batches[-1] * 1.05, line[-1], f"C = {C:,}", va="center")
        ax.set(xscale="log", xlabel="batch B (sequences)", ylabel="gain in tokens/s", xlim=(0.95, 1100))
        ax.set_ylim(bottom=0)
        ax.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
        ax.set_title(f"Gain of speculation, α = {alpha:g}, γ = {gamma}", loc="left")
