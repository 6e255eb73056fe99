"""The figures as outputs: the same bytes every time, small, self-contained, and drawn with the learner's answer."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from lessonlib import GPUS, MODELS, figures, reference
from lessonlib.figures import interactive
from tests.answers import all_parts
from tests.figure_pages import FIGURES

# Figure -> the exercise part and the reference that it can draw with.
TAKES = {
    "decode_roofline": ("decode_step", reference.decode_step),
    "batching": ("simulate", reference.simulate),
    "kv_memory": ("block_allocator", reference.BlockAllocator),
    "speculative_rounds": ("speculative_round", reference.speculative_round),
}
BYTES = 60_000
PARTS = all_parts()


class Parts(HTMLParser):
    """Elements and attributes of an output, and the text of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.scripts: list[str] = []
        self._open = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open == "script" and data.strip():
            self.scripts.append(data)

    def one(self, tag: str) -> dict[str, Any]:
        (attributes,) = [attributes for name, attributes in self.tags if name == tag]
        return attributes


def size(figure: figures.Figure) -> int:
    return len(figure.html.encode())


def data(figure: figures.Figure) -> dict[str, Any]:
    return json.loads(Parts(figure.html).scripts[0])


def is_message(figure: figures.Figure) -> bool:
    return figure.text.startswith("[figure not drawn]")


# --- the output -------------------------------------------------------------------------------------------


def test_there_are_six() -> None:
    assert len(FIGURES) == 6


@pytest.mark.parametrize("name", FIGURES)
def test_output(name: str) -> None:
    figure = FIGURES[name]()
    bundle = figure._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == repr(figure)
    assert size(figure) < BYTES
    parts = Parts(figure.html)
    assert not [attributes for _, attributes in parts.tags if "id" in attributes], "ids would clash in a notebook"
    outside = re.findall(r"https?://[^\s'\"]+", unquote(figure.html))
    assert set(outside) == {"http://www.w3.org/2000/svg"}
    for word in ("document.write", "currentScript", "localStorage", "sessionStorage", "fetch(", "import ", "eval("):
        assert word not in figure.html
    assert "$" not in re.sub(r"<script>.*?</script>", "", figure.html, flags=re.S), "JupyterLab would set it as math"


@pytest.mark.parametrize("name", FIGURES)
def test_still_picture(name: str) -> None:
    figure = FIGURES[name]()
    image = Parts(figure.html).one("img")
    head, _, body = image["src"].partition(",")
    assert head == "data:image/svg+xml;charset=utf-8"
    svg = ET.fromstring(unquote(body))
    words = " ".join(svg.itertext())
    title = data(figure)["title"]
    assert svg.findtext("{http://www.w3.org/2000/svg}title") == title
    assert image["alt"].startswith(title)
    for line in figure.text.split(". ")[1:-1]:
        assert line.rpartition(": ")[2] in words, "every reading is in the still picture"
    assert 0 < float(svg.attrib["height"]) < 500


def test_same_bytes_in_every_process() -> None:
    code = (
        "import hashlib; from lessonlib import figures; "
        f"print([hashlib.sha256(getattr(figures, n)().html.encode()).hexdigest() for n in {list(FIGURES)}])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {f"{[hashlib.sha256(f().html.encode()).hexdigest() for f in FIGURES.values()]}\n"}


def test_contrast_meets_wcag_aa() -> None:
    """Text on its backgrounds at 4.5 : 1, shapes on the paper at 3 : 1, in both themes."""
    css = files("lessonlib.figures").joinpath("base.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", css))
    assert len(colours) >= 14

    def luminance(colour: str) -> float:
        channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    def contrast(a: str, b: str, theme: int) -> float:
        one, other = sorted(luminance(colours[name].split(", ")[theme]) for name in (a, b))
        return (other + 0.05) / (one + 0.05)

    fills = ("blue", "orange", "green", "red", "purple", "grey")
    texts = [(ink, paper) for ink in ("ink", "soft", "red") for paper in ("paper", "card")] + [("on", f) for f in fills]
    for theme in (0, 1):
        for a, b in texts:
            assert contrast(a, b, theme) >= 4.5, (a, b, theme)
        for shape in (*fills, "edge"):
            assert contrast(shape, "paper", theme) >= 3, (shape, theme)


def test_first_numbers_are_the_golden_ones() -> None:
    golden = json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
    batching, decode, speculative = golden["batching"], golden["decode"], golden["speculative"]
    steps = data(figures.interference())["steps"]["100"]
    chunks = batching["chunked_512_step_seconds_at_peak"]
    assert steps["512"][0] == pytest.approx(chunks["first"], rel=1e-4)
    assert steps["512"][-1] == pytest.approx(chunks["last"], rel=1e-4)
    assert sum(steps["512"]) == pytest.approx(chunks["sum_ttft"], rel=1e-4)
    links = data(figures.interference())["links"]
    assert links["50 GB/s"] == pytest.approx(16 * batching["transfer_seconds"]["50e9"])
    step = next(step for step in decode["steps"] if (step["B"], step["C"]) == (32, 1024))
    assert f"Step time = TPOT: {1e3 * step['t_step']:.2f} ms. Tokens/s: {step['tokens_per_s']:,.0f}" in repr(
        figures.decode_roofline()
    )
    assert f"Accepted: Σ min(p, q): {speculative['example']['acceptance']:.3f}" in repr(figures.speculative_position())
    assert f"Expected tokens: {speculative['expected_tokens']['alpha=0.8,gamma=4']:.2f}" in repr(
        figures.speculative_rounds()
    )
    assert f"Best γ: {speculative['best_gamma_alpha_0.8_c_0.15']}" in repr(figures.speculative_rounds())


# --- with a learner's answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TAKES)
def test_reference_given_as_an_answer_draws_the_same(name: str) -> None:
    _, right = TAKES[name]
    plain, drawn = data(FIGURES[name]()), data(FIGURES[name](right))
    assert not is_message(FIGURES[name](right))
    same = {"decode_roofline": "models", "batching": "runs", "kv_memory": "paged", "speculative_rounds": "rounds"}[name]
    assert drawn[same] == plain[same]
    assert "Drawn with your" in FIGURES[name](right).text or "Run by your" in FIGURES[name](right).text


@pytest.mark.parametrize(
    ("name", "i"), [(name, i) for name, (part, _) in TAKES.items() for i in range(len(PARTS[part].right))]
)
def test_right_answers_are_drawn_without_complaint(name: str, i: int) -> None:
    figure = FIGURES[name](PARTS[TAKES[name][0]].right[i])
    assert not is_message(figure), figure.text
    assert size(figure) < BYTES
    assert "reference" not in figure.text
    assert not data(figure).get("off")
    if name == "decode_roofline":
        assert data(figure)["yours"] == {"rows": [], "index": {}}
    if name == "kv_memory":
        assert not any(event.startswith("broken") for event in data(figure)["events"]["paged"])


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, (part, _) in TAKES.items() for wrong in PARTS[part].wrong]
)
def test_wrong_answers_never_break_the_figure(
    name: str, wrong: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interactive, "SECONDS", 0.5)
    figure = FIGURES[name](PARTS[TAKES[name][0]].wrong[wrong].answer)
    assert size(figure) < BYTES
    assert capsys.readouterr() == ("", "")


def times_out(*args: Any) -> None:
    while True:
        time.sleep(0.01)


def unfinished(*args: Any) -> None:
    raise NotImplementedError


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (unfinished, "not written yet"),
        (times_out, "nothing within 0.3 s"),
        (lambda *args: 1 / 0, "ZeroDivisionError"),
        (lambda *args: None, "None"),
        (lambda *args: "text", ("'text'", "'str' object")),
        (42, "got 42"),
    ],
    ids=["unfinished", "hangs", "raises", "None", "text", "no function"],
)
def test_what_cannot_be_drawn_is_explained(name: str, answer: Any, words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "SECONDS", 0.3)
    figure = FIGURES[name](answer)
    assert is_message(figure)
    assert any(word in figure.text for word in ([words] if isinstance(words, str) else words))
    assert f"figures.{name}()" in figure.text, "how to see the reference"
    assert "Traceback" not in figure.html
    assert "<script" not in figure.html


def weights_per_sequence(B, C, cfg, gpu):
    right = reference.decode_step(B, C, cfg, gpu)
    t_memory = right.t_memory + (B - 1) * cfg.n_params * cfg.bytes_per_weight / gpu.bandwidth
    t_step = max(t_memory, right.t_compute)
    return replace(right, t_memory=t_memory, t_step=t_step, tokens_per_s=B / t_step)


def test_a_wrong_decode_step_is_seen() -> None:
    figure = figures.decode_roofline(weights_per_sequence)
    assert "Solid: your decode_step, 155 ms here. Dashed: the reference, 6.08 ms." in figure.text
    assert "Step time = TPOT: 155 ms" in figure.text
    yours = data(figure)["yours"]
    row = yours["rows"][yours["index"]["0.2.0.2"][2]]
    stop = data(figure)["stops"].index(32)
    args = (32, 1024, MODELS["Llama-3-8B"], GPUS["H100-SXM"])
    assert row[stop] == pytest.approx(
        weights_per_sequence(*args).t_memory / reference.decode_step(*args).t_memory, rel=1e-3
    )


def test_noise_still_fits_in_the_output() -> None:
    rng = np.random.default_rng(0)

    def noise(B, C, cfg, gpu):
        right = reference.decode_step(B, C, cfg, gpu)
        names = ("n_bytes", "flops", "t_memory", "t_compute", "t_step", "tokens_per_s")
        return replace(right, **{name: getattr(right, name) * rng.uniform(0.01, 10) for name in names})

    assert size(figures.decode_roofline(noise)) < BYTES


def test_a_wrong_simulate_is_seen() -> None:
    figure = figures.batching(lambda requests, n_slots, policy: reference.simulate(requests, n_slots, "continuous"))
    static, continuous = data(figure)["runs"]["16"][0]
    assert static["n_steps"] == continuous["n_steps"]
    assert static["right"][0] > static["n_steps"]
    assert "right" not in continuous
    assert "for static; the reference" in figure.text


class NoCopy(reference.BlockAllocator):
    """Writes into shared blocks."""

    def append(self, seq_id):
        if self.lengths[seq_id] % self.block_size == 0:
            return super().append(seq_id)
        self.lengths[seq_id] += 1
        return None


class Leaks(reference.BlockAllocator):
    """Never gives a block back."""

    def free(self, seq_id):
        del self.block_tables[seq_id], self.lengths[seq_id]


class NoFork(reference.BlockAllocator):
    """fork is still to be written."""

    def fork(self, parent_id, child_id):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("allocator", "words"),
    [(NoCopy, "another sequence holds too"), (Leaks, "ref_counts"), (NoFork, "fork: not written yet")],
)
def test_a_wrong_allocator_is_seen(allocator: type, words: str) -> None:
    figure = figures.kv_memory(allocator)
    assert not is_message(figure)
    assert size(figure) < BYTES
    assert any(event.startswith("broken") and words in event for event in data(figure)["events"]["paged"])


def test_a_wrong_speculative_round_is_seen() -> None:
    no_bonus = figures.speculative_rounds(lambda p, q, rng: reference.speculative_round(p, q, rng)[: len(q)])
    assert "fewer tokens than expected" in no_bonus.text
    too_many = figures.speculative_rounds(lambda p, q, rng: [0] * (len(p) + 1))
    assert "gave 3 tokens with γ = 1" in too_many.text
