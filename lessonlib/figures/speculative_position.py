"""Figure 4: one position of speculative sampling (Leviathan et al. 2023, arXiv:2211.17192, appendix A.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from lessonlib.figures import interactive, still

TITLE = "One position: what is kept, what is resampled"
QUALITIES = tuple(round(0.05 * i, 2) for i in range(21))
# With λ = 0.25 the first is the lesson's example, q = (0.9, 0.1).
VOCABULARIES: dict[int, dict[str, Any]] = {
    2: {"words": ["hot", "cold"], "target": [0.6, 0.4], "poor": [1.0, 0.0]},
    4: {"words": ["hot", "warm", "mild", "cold"], "target": [0.4, 0.3, 0.2, 0.1], "poor": [0.05, 0.15, 0.2, 0.6]},
}
N_DRAWS = 2000
N_SAMPLES = 4
START = {"quality": 0.25, "tokens": 2, "sample": 0}


def parts(target: list[float], poor: list[float], quality: float) -> dict[str, Any]:
    """What happens to each token's probability at one position.

    Args:
        target: p, shape (V,).
        poor: the draft of quality 0, shape (V,).
        quality: λ in [0, 1]; the draft is q = λ · target + (1 − λ) · poor.

    Returns:
        draft q, kept min(p, q) and resampled p − min(p, q), each of shape (V,), and acceptance Σ min(p, q).
    """
    p = np.array(target)
    q = quality * p + (1 - quality) * np.array(poor)
    kept = np.minimum(p, q)
    return {"draft": q, "kept": kept, "resampled": p - kept, "acceptance": float(kept.sum())}


def draws(target: list[float], poor: list[float], quality: float, seed: int) -> list[list[int]]:
    """How often each token came out, first where the draft was kept and then where it was resampled."""
    rng = np.random.default_rng(seed)
    part = parts(target, poor, quality)
    p, q = np.array(target), part["draft"]
    drafted = rng.choice(len(p), size=N_DRAWS, p=q)
    accepted = rng.random(N_DRAWS) * q[drafted] < p[drafted]
    n_rejected = int(N_DRAWS - accepted.sum())
    residual = part["resampled"]
    again = rng.choice(len(p), size=n_rejected, p=residual / residual.sum()) if n_rejected else np.array([], dtype=int)
    return [np.bincount(tokens, minlength=len(p)).tolist() for tokens in (drafted[accepted], again)]


def speculative_position() -> interactive.Figure:
    """Draft, kept part, resampled part and target at one position, for any draft quality, with random draws on top."""
    chosen = VOCABULARIES[START["tokens"]]  # type: ignore[index]
    part = parts(chosen["target"], chosen["poor"], START["quality"])
    acceptance = part["acceptance"]
    return interactive.figure(
        "speculative_position",
        title=TITLE,
        idea="Make the draft better or worse with λ. The output bars never move: that is why the method is exact.",
        alt="For each token a draft bar, of which min(p, q) is kept, and an output bar: kept part plus resampled part.",
        data={
            "state": START,
            "qualities": QUALITIES,
            "n": N_DRAWS,
            "samples": N_SAMPLES,
            "vocabularies": {
                n: {
                    **v,
                    "draws": [
                        [draws(v["target"], v["poor"], quality, seed) for seed in range(1, N_SAMPLES + 1)]
                        for quality in QUALITIES
                    ],
                }
                for n, v in VOCABULARIES.items()
            },
        },
        picture=_still(chosen, part),
        height=300,
        readings=[
            ("Accepted: Σ min(p, q)", still.fixed(acceptance, 3)),
            ("Rejected = resampled", still.fixed(1 - acceptance, 3)),
            ("Accepted of 2,000", "–"),
            ("Largest gap to p", "–"),
        ],
        says="Where the draft gives too much, the excess is rejected; exactly that mass fills the gaps elsewhere. "
        "The output is the target for every λ.",
    )


def _still(chosen: dict[str, Any], part: dict[str, Any]) -> str:
    base, each, bar = 258, 300, 100
    up = still.linear(0, 1, base, 50)
    svg = still.keys(34, 14, [("blue", "kept: min(p, q)"), ("empty", "rejected"), ("orange", "resampled")])
    for v in (0, 0.25, 0.5, 0.75, 1):
        svg += still.line(34, up(v), 656, up(v), "rule") + still.text(28, up(v) + 4, still.fixed(v, 2), "soft", "end")
    for i, (word, p) in enumerate(zip(chosen["words"], chosen["target"], strict=True)):
        kept, draft = part["kept"][i], part["draft"][i]
        middle = 345 + (i - (len(chosen["words"]) - 1) / 2) * each
        left, right = middle - bar - 6, middle + 6
        svg += still.rect(left, up(kept), bar, base - up(kept), "blue")
        svg += still.rect(left, up(draft), bar, up(kept) - up(draft), "empty")
        svg += still.rect(right, up(kept), bar, base - up(kept), "blue")
        svg += still.rect(right, up(p), bar, up(kept) - up(p), "orange")
        svg += still.line(right - 5, up(p), right + bar + 5, up(p), "mark")
        svg += still.text(left + bar / 2, up(draft) - 6, still.fixed(draft, 2), "soft", "middle")
        svg += still.text(right + bar / 2, up(p) - 13, still.fixed(p, 2), "bold", "middle")
        if draft > kept:
            svg += still.text(
                left + bar / 2, up((draft + kept) / 2) + 4, f"−{still.fixed(draft - kept, 2)}", "", "middle"
            )
        if p > kept:
            svg += still.text(right + bar / 2, up((p + kept) / 2) + 4, f"+{still.fixed(p - kept, 2)}", "on", "middle")
        svg += still.text(left + bar / 2, base + 15, "draft", "soft", "middle")
        svg += still.text(right + bar / 2, base + 15, "output", "soft", "middle")
        svg += still.text(middle, base + 33, f"“{word}”", "head", "middle")
    return svg + still.line(34, base, 656, base, "axis")
