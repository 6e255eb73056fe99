"""Quick checks and predictions: small questions that are answered in place, in every front end, without a script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """One choice of a question.

    Args:
        text: what it says.
        why: why it is right or wrong.
        right: whether it is right.
    """

    text: str
    why: str
    right: bool = False


class Question:
    """A question whose choices unfold to the reason why each is right or wrong."""

    def __init__(self, prompt: str, choices: Sequence[Choice]) -> None:
        if sum(choice.right for choice in choices) != 1:
            raise ValueError(f"exactly one choice must be right: {prompt!r}")
        self.prompt = prompt
        self.choices = tuple(choices)

    def _repr_html_(self) -> str:
        folded = "".join(
            '<details style="margin:4px 0;padding:4px 10px;border-left:3px solid #888">'
            f'<summary style="cursor:pointer">{html.escape(choice.text)}</summary>'
            f"<p><b>{'✓ Right.' if choice.right else '✗ No.'}</b> {html.escape(choice.why)}</p></details>"
            for choice in self.choices
        )
        return (
            '<div style="max-width:46em;line-height:1.45">'
            f"<p><b>{html.escape(self.prompt)}</b> Click the choice that you would make.</p>{folded}</div>"
        )

    def __repr__(self) -> str:
        return "\n".join([self.prompt, *(f"  - {choice.text}" for choice in self.choices)])


def compare(name: str, guess: float | None, value: float, unit: str) -> None:
    """Print a prediction beside the value that was computed.

    Args:
        name: what was predicted.
        guess: the learner's number, or None where none was written down.
        value: the computed number.
        unit: unit of both.
    """
    if guess is None:
        print(f"{name}: {value:.4g} {unit}. You noted no prediction.")
        return
    ratio = guess / value if value else float("inf")
    if 0.8 <= ratio <= 1.25:
        verdict = "well predicted"
    else:
        verdict = (
            f"{ratio:.3g} times too high" if ratio > 1 else f"{1 / ratio:.3g} times too low" if ratio > 0 else "no"
        )
    print(f"{name}: {value:.4g} {unit}. You predicted {guess:.4g} {unit}: {verdict}.")
