"""Quick checks of lesson 4. The keys are computed from the reference answers."""

from __future__ import annotations

import numpy as np

from lessonlib.quiz.question import Choice, Question
from lessonlib.reference import expected_tokens, speedup
from lessonlib.speculation import acceptance, output_law


def what_is_rejected() -> Question:
    """How often a token is kept that the draft gives too often."""
    p, q = np.array([0.3, 0.7]), np.array([0.5, 0.5])
    rejected = 1 - float(acceptance(p, q))
    return Question(
        "Now p = (0.3, 0.7) and q = (0.5, 0.5). The draft proposes the first token. With which probability is it kept?",
        [
            Choice(
                f"{p[0]:g}",
                "That is p. The token was drawn with probability q already: the rule compares p with q.",
            ),
            Choice(
                f"{p[0] / q[0]:g}",
                f"p/q = {p[0]:g} / {q[0]:g}. It is then drafted and kept with probability {q[0] * p[0] / q[0]:g}, "
                "which is p.",
                right=True,
            ),
            Choice(
                f"{1 - rejected:g}",
                f"That is the share of all drafts that are kept. The second token is always kept, so the whole "
                f"rejected share of {rejected:.1f} falls on the first.",
            ),
            Choice(
                "1",
                "That holds for the second token, which is drafted too rarely. The first is drafted too often.",
            ),
        ],
    )


def is_it_approximate() -> Question:
    """What a bad draft costs."""
    p, bad = np.array([0.6, 0.4]), np.array([0.02, 0.98])
    law, rate = output_law(p, bad), float(acceptance(p, bad))
    return Question(
        "You replace the draft model by a much worse one. What happens to the text that users get?",
        [
            Choice(
                "It gets worse: speculative decoding is an approximation",
                f"The output law is p for every q. With q = ({bad[0]:g}, {bad[1]:g}) and p = (0.6, 0.4) it is still "
                f"({law[0]:.1f}, {law[1]:.1f}).",
            ),
            Choice(
                "It comes from the same distribution, only later",
                f"A draft decides the speed alone. In the example above the acceptance rate falls to {rate:.2f}, and "
                "the output law stays p.",
                right=True,
            ),
            Choice(
                "It is the same text, bit for bit",
                "The distribution is the same. A single text follows from the random draws, and these are used "
                "differently.",
            ),
        ],
    )


def tokens_per_pass() -> Question:
    """Tokens per target pass at α = 0.8, γ = 4."""
    alpha, gamma = 0.8, 4
    right = expected_tokens(alpha, gamma)
    return Question(
        f"α = {alpha} and γ = {gamma}. How many tokens does one target pass give on average?",
        [
            Choice(
                f"{alpha * gamma:.2f}",
                "γ·α counts every draft that would be accepted, also those behind a rejection. And it forgets the "
                "token that each pass adds.",
            ),
            Choice(
                f"{expected_tokens(alpha, gamma - 1):.2f}",
                "That sum stops at α³. The bonus token comes with probability α⁴ and belongs to it.",
            ),
            Choice(f"{right:.2f}", "1 + α + α² + α³ + α⁴ = (1 − α⁵) / (1 − α).", right=True),
            Choice(f"{right - 1:.2f}", "These are the accepted drafts. Every pass gives one token more."),
        ],
    )


def when_to_switch_off() -> Question:
    """Why speculation is switched off under load."""
    weak, weak_gamma = 0.3, 4
    return Question(
        "A server has speculative decoding on, with γ = 4. At night it is fast. At noon, with hundreds of short chats "
        "in the batch, throughput is below that of a server without. Why?",
        [
            Choice(
                "The draft model is less accurate for many users",
                "α is a matter of the two models and the text, not of the batch.",
            ),
            Choice(
                "Five positions per sequence make the pass compute-bound",
                "At night arithmetic was idle, and scoring five positions was free. At noon it is the limit, and "
                "every rejected position takes time from others. Lower γ as the batch grows, or switch off.",
                right=True,
            ),
            Choice(
                "The rejected tokens fill the KV cache",
                "Their entries are overwritten at once. They take a few slots per sequence, no more.",
            ),
            Choice(
                "The acceptance rule needs a larger γ",
                f"A larger γ makes it worse: still more positions to score. A weak draft loses even alone: α = {weak}, "
                f"c = 0.3 gives S = {speedup(weak, weak_gamma, 0.3):.2f}.",
            ),
        ],
    )
