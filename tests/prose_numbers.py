"""Every number in a lesson's prose, and the cell that computes it.

A number in prose counts as held where an output of the executed notebook shows it (rounded as in the prose), or
where it is given as an input in a code cell. Small whole numbers are words; what a paper reports stands in
`PUBLISHED` with its source. All else is a number that nobody computes, and a test fails.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import nbformat

from lessonlib.course.build import is_measured
from tests.notebooks import read

WORDS = 20  # whole numbers up to this one are taken as words ("2 ways", "lesson 4")

# Lesson -> number as written -> where it was published, or what it is.
PUBLISHED: dict[str, dict[str, str]] = {
    "01_kv_cache": {
        "93.3%": "DeepSeek-V2 paper, abstract: with 6-bit quantisation, against DeepSeek 67B",
        "67": "DeepSeek 67B, a name",
        "0.8": "premise of a question that lesson 4 answers",
    },
    "02_decode_roofline": {
        "99%": "the share that an SLO promises, an example",
        "1.25": "kernels timed by others beside their bounds, H100, the least",
        "1.41": "the same, the most",
        "1.44": "kernels timed by others beside their bounds, A100, the least",
        "1.62": "the same, the most",
    },
    "03_paged_memory": {
        "20.4%": "Kwon et al. 2023, section 3.1: earlier systems, the least",
        "38.2%": "the same, the most",
        "96.3%": "the same, vLLM",
        "26%": "Kwon et al. 2023, section 7.1: the attention kernel, at most",
        "12,035": "Mooncake's conversation trace, mean prompt",
        "512": "the same, tokens in a block",
        "36.6%": "the same, hits with an unlimited cache",
        "10,000": "the same, blocks of a limited cache",
        "21%": "the same, hits with that cache",
    },
}

NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(%?)(?!\w*-\d)")
NOT_PROSE = [
    re.compile(r"```.*?```", re.DOTALL),
    re.compile(r"`[^`]*`"),
    re.compile(r"!?\[[^\]]*\]\([^)]*\)"),
    re.compile(r"arXiv:\S+"),
    re.compile(r"\b[Ss]ections? [\d.]+"),
    re.compile(r"<[^>]+>"),
    re.compile(r"\b(?:Llama|Qwen|Gemma|Phi|gpt-oss|DeepSeek|Mistral|Mixtral|SmolLM2|SmolLM|Falcon)-?[\w.\-]*", re.I),
    re.compile(r"\b(?:H100|H200|A100|B200|MI300X|T4|L4|A10|fp16|fp32|fp8|bf16|int8|int4|float32|float64)\b"),
    re.compile(r"\b(?:19|20)\d\d\b"),  # years
    re.compile(r"^#+ .*$", re.MULTILINE),  # headings
    re.compile(r"^\*Difficulty.*$", re.MULTILINE),
    re.compile(r"^\*\*Time\*\*.*$", re.MULTILINE),
]


@dataclass(frozen=True)
class Held:
    """One number of the prose and where it comes from: a cell's id, "given" or "published"."""

    number: str
    source: str


def prose_numbers(text: str) -> list[str]:
    """The numbers of a Markdown text as they are written, without code, names, years and headings."""
    text = text.replace("{,}", ",")  # a comma inside a formula
    for pattern in NOT_PROSE:
        text = pattern.sub(" ", text)
    found = [number.rstrip(",") + percent for number, percent in NUMBER.findall(text)]
    return [number for number in found if not (number.isdigit() and int(number) <= WORDS)]


def audit(lesson: str) -> tuple[list[Held], list[str]]:
    """Numbers of a lesson's prose that are held, and those that no cell computes."""
    nb = read("solutions", lesson)
    code = [cell for cell in nb.cells if cell.cell_type == "code" and not is_measured(cell)]
    outputs = {cell.id: shown_numbers(cell) for cell in code}
    given = {value for cell in nb.cells if cell.cell_type == "code" for value in values(cell.source)}
    held, loose = [], []
    wanted = [n for cell in nb.cells if cell.cell_type == "markdown" for n in prose_numbers(cell.source)]
    for number in dict.fromkeys(wanted):
        source = next((cell_id for cell_id, shown in outputs.items() if matches(number, shown)), None)
        if source is None and matches(number, given, (1, 1e-3, 1e-6, 1e-9, 1e-12)):  # 50 GB may be given as 50e9
            source = "given"
        if source is None and number in PUBLISHED.get(lesson, {}):
            source = "published"
        if source is None:
            loose.append(number)
        else:
            held.append(Held(number, source))
    return held, loose


def shown_numbers(cell: nbformat.NotebookNode) -> set[float]:
    """All numbers that a code cell's outputs show."""
    texts = []
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" in data:
            continue  # its text is the size of the figure
        texts += [output.get("text", ""), data.get("text/plain", "")]
        texts.append(html.unescape(re.sub(r"<[^>]+>", " ", data.get("text/html", ""))))
    return {value for text in texts for value in values(text)}


def values(text: str) -> set[float]:
    """Numbers in a text, with and without thousands separators; a percentage also as a share."""
    found = set()
    for number in re.findall(r"\d[\d,_]*(?:\.\d+)?(?:e-?\d+)?", text):
        found.add(float(number.replace(",", "").replace("_", "").rstrip(".")))
    return found


def matches(number: str, shown: set[float], scales: tuple[float, ...] = (1,)) -> bool:
    """Whether one of the shown numbers, times one of the scales and rounded as in the prose, is this one."""
    plain = number.rstrip("%").replace(",", "")
    digits = len(plain.partition(".")[2])
    scales = (*scales, 100) if number.endswith("%") else scales
    return any(abs(round(value * scale, digits) - float(plain)) < 1e-9 for value in shown for scale in scales)
