"""The output of a figure: one self-contained piece of HTML that is live wherever scripts may run.

It holds a still picture, the data as JSON, and a script that replaces the still by the live figure. Nothing is
loaded, stored or looked up outside the output, and the same data always give the same bytes. A front end that
does not trust the notebook drops the script and keeps the still; a terminal shows the text.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from lessonlib.check.harness import Answer, CheckFailed, NotWritten
from lessonlib.figures import still

SECONDS = 10.0  # time limit of one call of a learner's answer
# Characters that may stand for themselves in a data URI inside a double-quoted attribute.
_SAFE = " !$'()*+,-./:;=@[]_{}|~"


@dataclass(frozen=True)
class Figure:
    """A figure, ready to be shown as the last value of a cell.

    Attributes:
        html: the self-contained output.
        text: what the figure says, for places that show text alone.
    """

    html: str = field(repr=False)
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """IPython's hook."""
        return {"text/html": self.html, "text/plain": self.text}


def figure(
    name: str,
    *,
    title: str,
    idea: str,
    alt: str,
    data: dict[str, Any],
    picture: str,
    height: int,
    readings: list[tuple[str, str]],
    says: str,
) -> Figure:
    """Put a figure together.

    Args:
        name: name of the figure's script in this package.
        title: its heading.
        idea: one sentence on what to try and see.
        alt: what the picture shows, for those who do not see it.
        data: what the script draws from; plain JSON values, with the first state under "state".
        picture: SVG of the first state, drawn with `still`.
        height: height of that picture.
        readings: label and value of each reading of the first state.
        says: the sentence below the picture.
    """
    shown = ". ".join(f"{label}: {value}" for label, value in readings)
    image = _still(title, picture, height, readings, says)
    facts = _json({"title": title, "idea": idea, "alt": alt, **data})
    key = f"{name}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"
    html = f"""<div class="llf" data-llf="{key}">
<style>
{_source("base.css")}
{_source("picture.css")}
</style>
<img alt="{escape(f"{title}. {alt} {shown}. {says}")}" src="data:image/svg+xml;charset=utf-8,{quote(image, _SAFE)}">
<script type="application/json">
{facts}
</script>
<script>
(() => {{
"use strict";
{_source("base.js")}
{_source(f"{name}.js")}
document.querySelectorAll('[data-llf="{key}"]:not([data-live])').forEach((root) => start(root, figure));
}})();
</script>
</div>"""
    return Figure(html, f"[interactive figure] {title}. {shown}. {says}")


def message(title: str, words: str, details: str = "") -> Figure:
    """What stands in the place of a figure that cannot be drawn: a sentence, and the details in fixed type."""
    more = f"\n<pre>{escape(details)}</pre>" if details else ""
    html = (
        f'<div class="llf">\n<style>\n{_source("base.css")}\n</style>\n'
        f'<p class="title">{escape(title)}</p>\n<p>{escape(words)}</p>{more}\n</div>'
    )
    return Figure(html, "\n".join(filter(None, [f"[figure not drawn] {title}. {words}", details])))


def learners(function: Any, name: str) -> Answer | None:
    """A learner's function, to be called safely; None where the reference is to be drawn.

    Raises:
        CheckFailed: it is not callable.
    """
    if function is None:
        return None
    if not callable(function):
        raise CheckFailed(
            f"The figure takes the {'class' if name[0].isupper() else 'function'} itself, {name}, got {function!r}."
        )
    return Answer(function, name, SECONDS)


def or_message(title: str, example: str) -> Callable[[Callable[..., Figure]], Callable[..., Figure]]:
    """Make a figure say what went wrong with the learner's function, in place of a traceback.

    Args:
        title: heading of the figure.
        example: the call that shows the figure with the reference answer.
    """

    def decorate(draw: Callable[..., Figure]) -> Callable[..., Figure]:
        @functools.wraps(draw)
        def drawn(*args: Any) -> Figure:
            try:
                return draw(*args)
            except NotWritten as unfinished:
                return message(
                    title,
                    f"{unfinished} This figure draws with your own answer. {example} shows it with the reference.",
                )
            except CheckFailed as failure:
                return message(
                    title,
                    f"Your answer could not be drawn. {example} shows the figure with the reference.",
                    str(failure),
                )

        return drawn

    return decorate


def _still(title: str, picture: str, height: int, readings: list[tuple[str, str]], says: str) -> str:
    """The still picture: heading, readings, drawing and sentence, as one SVG document."""
    top = 62
    column = (still.WIDTH - 24) / len(readings)
    body = still.text(12, 24, title, "title")
    for i, (label, value) in enumerate(readings):
        body += still.text(12 + i * column, 46, label, "soft") + still.text(12 + i * column, 62, value, "head")
    lines = textwrap.wrap(says, 104)
    foot = top + 20 + height
    body += f"<g transform='translate(12 {top + 20})'>{picture}</g>"
    body += "".join(still.text(12, foot + 20 + 17 * i, words) for i, words in enumerate(lines))
    total = foot + 34 + 17 * len(lines)
    body += still.text(12, total - 8, "A still picture: trust the notebook, or run the cell, to play with it.", "soft")
    # Inside an SVG document the document itself is the figure.
    palette = re.search(r"\.llf (\{.*?--sky:[^;]*;)", _source("base.css"), re.S)
    assert palette is not None
    style = f"svg {palette[1]} background: var(--paper)}} {_source('picture.css').replace('.llf ', '')}"
    style += " text.title {font-size: 15px; font-weight: 650}"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {still.WIDTH} {total:g}' width='{still.WIDTH}' "
        f"height='{total:g}'><title>{escape(title, quote=False)}</title><style>{' '.join(style.split())}</style>"
        f"{body}</svg>"
    )


def compact(value: Any) -> str:
    """JSON in as few bytes as will do. Twelve digits are the same on every machine, the last ones of a sum are not."""
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.12g}")
    return value


def _json(value: dict[str, Any]) -> str:
    """JSON that may stand in a script element, one top-level entry a line so that diffs stay readable."""
    entries = (f"{json.dumps(key)}:{compact(v)}" for key, v in value.items())
    return ("{" + ",\n".join(entries) + "}").replace("<", "\\u003c")


@functools.cache
def _source(name: str) -> str:
    """A script or style of this package, without comments and indentation."""
    source = files("lessonlib.figures").joinpath(name).read_text(encoding="utf-8")
    source = re.sub(r"/\*.*?\*/\n?", "", source, flags=re.S)
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
