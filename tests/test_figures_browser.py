"""The figures in a real browser: every control moved, every reading compared with Python's value."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from lessonlib import GPUS, MODELS, figures, reference
from lessonlib.figures.batching import LONGEST, N_SETS, N_SLOTS, POLICIES, workload
from lessonlib.figures.decode_roofline import CONTEXTS, GPU_NAMES, GRIDS, KV_BYTES, MODEL_KINDS, room, stops
from lessonlib.figures.interference import CFG, CHUNKS, GPU, PEAK_PERCENT, PROMPT, SLO, B, C
from lessonlib.figures.kv_memory import BLOCK, N_BLOCKS, Reserving, Server, snapshot, used_share
from lessonlib.figures.speculative_position import N_DRAWS, N_SAMPLES, QUALITIES, VOCABULARIES, draws, parts
from lessonlib.figures.speculative_rounds import ALPHAS, COSTS, GAMMAS, laws
from lessonlib.roofline import decode_bytes, decode_flops, prefill_flops, prefill_seconds, step_seconds
from tests.figure_pages import FIGURES, Hands, notebook, output, static_page

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def html() -> str:
    return static_page()


@pytest.fixture(scope="module")
def hands(chromium: Any, html: str) -> Iterator[Hands]:
    """The static page, with scripts, off the network."""
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/*", lambda route: route.abort())
    page.set_content(html)
    yield Hands(page)
    assert errors == []
    page.close()


def check(hands: Hands, figure: str, expected: dict[str, Any]) -> None:
    shown = hands.read(figure)
    for key, value in expected.items():
        if isinstance(value, str):
            assert shown[key] == value, (figure, key)
        else:
            assert shown[key] == pytest.approx(value, rel=1e-9, abs=1e-12), (figure, key)


# --- one walk through the controls of each figure -----------------------------------------------------------


def walk_decode_roofline(hands: Hands, thorough: bool) -> None:
    name = "decode_roofline"
    models = list(MODEL_KINDS)

    def at(model: int, gpu: int, kv: int, context: int, batch: int | None) -> None:
        cfg, card = replace(MODELS[models[model]], bytes_per_kv=KV_BYTES[kv]), GPUS[GPU_NAMES[gpu]]
        batches = stops(GRIDS[0], CONTEXTS[context], cfg, card)
        index = len(batches) - 1 if batch is None else min(batch, len(batches) - 1)
        for label, value in (
            ("Model", model),
            ("GPU", gpu),
            ("KV cache", kv),
            ("Context C", context),
            ("Batch B", index),
        ):
            hands.move(name, label, value)
        step = reference.decode_step(batches[index], CONTEXTS[context], cfg, card)
        fits = reference.max_batch(max(0, room(cfg, card)), CONTEXTS[context], cfg)
        expected = {"t_step": step.t_step, "tokens_per_s": step.tokens_per_s, "intensity": step.flops / step.n_bytes}
        check(hands, name, {**expected, "bound": step.bound, "fits": fits})

    for batch in range(17):
        at(0, 2, 0, 3, batch)
    if thorough:
        for setting in itertools.product(range(3), range(4), range(2), range(len(CONTEXTS))):
            at(*setting, batch=None)
    else:
        for setting in ((1, 0, 1, 5), (2, 3, 0, 0), (0, 1, 1, 6)):
            at(*setting, batch=None)


def walk_batching(hands: Hands, thorough: bool) -> None:
    for i, longest in enumerate(LONGEST):
        hands.move("batching", "Longest output", i)
        for _ in range(N_SETS if thorough else 1):
            hands.move("batching", "New random requests")
        seeds = range(1) if thorough else [(i + 1) % N_SETS]
        results = [reference.simulate(workload(seed, longest), N_SLOTS, p) for seed in seeds for p in POLICIES]
        check(
            hands,
            "batching",
            {key: [getattr(r, key) for r in results] for key in ("n_steps", "slot_use", "mean_latency")},
        )


def walk_kv_memory(hands: Hands, thorough: bool) -> None:
    words = {"s": "Step", "a": "Add request", "f": "Fork oldest"}
    rng = np.random.default_rng(4)
    paths = ["sfsass", "aafsssssss"]
    if thorough:
        paths += ["".join(rng.permutation(list("sssssssaaf"[: rng.integers(3, 11)]))) for _ in range(25)]
    for path in paths:
        for turn, mode in enumerate(("contiguous", "paged")):
            hands.move("kv_memory", "Memory", turn)
            servers = [Server(reference.BlockAllocator(N_BLOCKS, BLOCK), paged=True), Server(Reserving(), paged=False)]
            for i, action in enumerate(path):
                if path[:i].count("s") == 7:
                    break
                hands.move("kv_memory", words[action])
                for server in servers:
                    server.act(action)
                states = [snapshot(server) for server in servers]
                own = states[mode == "contiguous"]
                expected = {"paged": used_share(states[0]), "contiguous": used_share(states[1])}
                expected["tokens"] = sum(length for length, _ in own.values())
                expected["taken"] = len(set("".join(table for _, table in own.values())))
                check(hands, "kv_memory", expected)
            for _ in path:
                hands.move("kv_memory", "Back")


def walk_speculative_position(hands: Hands, thorough: bool) -> None:
    name = "speculative_position"
    for n_samples in range(1, N_SAMPLES + 1 if thorough else 2):
        hands.move(name, "Sample 2,000")
        for i, n_tokens in enumerate(VOCABULARIES):
            hands.move(name, "Vocabulary", i)
            for j in range(0, len(QUALITIES), 1 if thorough else 7):
                hands.move(name, "Draft quality λ", j)
                target, poor = VOCABULARIES[n_tokens]["target"], VOCABULARIES[n_tokens]["poor"]
                acceptance = parts(target, poor, QUALITIES[j])["acceptance"]
                kept, again = np.array(draws(target, poor, QUALITIES[j], n_samples))
                off = np.abs((kept + again) / N_DRAWS - target).max()
                expected = {"acceptance": acceptance, "reject": 1 - acceptance, "measured": kept.sum() / N_DRAWS}
                check(hands, name, {**expected, "off": off})


def walk_speculative_rounds(hands: Hands, thorough: bool) -> None:
    name = "speculative_rounds"
    for press in range(2):
        for i, alpha in enumerate(ALPHAS):
            hands.move(name, "Acceptance rate α", i)
            for j, gamma in enumerate(GAMMAS if thorough else GAMMAS[:2]):
                hands.move(name, "Draft length γ", j)
                cost = (i + 3 * j) % len(COSTS)
                hands.move(name, "Draft cost c", cost)
                p, q = laws(alpha, gamma)
                rng = np.random.default_rng(100 * i + gamma)
                lengths = [len(reference.speculative_round(p, q, rng)) for _ in range(12 * (press + 1))]
                gains = [reference.speedup(alpha, g, COSTS[cost]) for g in GAMMAS]
                expected = {"expected": reference.expected_tokens(alpha, gamma), "speedup": gains[j]}
                check(hands, name, {**expected, "mean": np.mean(lengths), "best": GAMMAS[int(np.argmax(gains))]})
        hands.move(name, "Simulate 12 more")


def walk_interference(hands: Hands, thorough: bool) -> None:
    name = "interference"
    for i, policy in enumerate(("one piece", "chunked", "disaggregated")):
        hands.move(name, "Prefill", i)
        for j, chunk in enumerate(CHUNKS):
            hands.move(name, "Chunk size", j)
            for k, percent in enumerate(PEAK_PERCENT):
                hands.move(name, "FLOP/s reached", k)
                share, n_bytes, flops = percent / 100, decode_bytes(B, C, CFG), decode_flops(B, B * C, CFG)
                plain = step_seconds(n_bytes, flops, GPU, share)
                size = PROMPT if policy == "one piece" else chunk
                steps = [
                    step_seconds(n_bytes, flops + prefill_flops(size, CFG, cached), GPU, share)
                    for cached in range(0, PROMPT, size)
                ]
                ttft = sum(steps)
                if policy == "disaggregated":
                    steps, ttft = [plain], prefill_seconds(PROMPT, CFG, GPU, share)
                expected = {"longest": max(steps), "spike": max(steps) / plain, "over": sum(t > SLO for t in steps)}
                check(hands, name, {**expected, "ttft": ttft})


WALKS: dict[str, Callable[[Hands, bool], None]] = {
    name.removeprefix("walk_"): walk for name, walk in list(globals().items()) if name.startswith("walk_")
}


LEARNERS = {
    "batching": reference.simulate,
    "decode_roofline": reference.decode_step,
    "kv_memory": reference.BlockAllocator,
    "speculative_rounds": reference.speculative_round,
}


@pytest.mark.parametrize("name", FIGURES)
def test_first_state_is_that_of_the_still_picture(chromium: Any, name: str) -> None:
    """Labels, readings and sentence of the live figure are, to the letter, those that Python wrote."""
    page = chromium.new_page()
    for figure in (output(name), *([FIGURES[name](LEARNERS[name])] if name in LEARNERS else [])):
        page.set_content(figure.html)
        texts = {look: page.locator(look).all_text_contents() for look in (".title", "dt", "dd", ".says")}
        shown = ". ".join(f"{label}: {value}" for label, value in zip(texts["dt"], texts["dd"], strict=True))
        assert f"[interactive figure] {texts['.title'][0]}. {shown}. {texts['.says'][0]}" == figure.text
    page.close()


@pytest.mark.parametrize("figure", FIGURES)
def test_every_control_in_the_static_page(hands: Hands, figure: str) -> None:
    WALKS[figure](hands, True)


def test_every_figure_has_its_walk() -> None:
    assert set(WALKS) == set(FIGURES)


# --- the page's formulas against Python's -------------------------------------------------------------------


def source(name: str) -> str:
    return files("lessonlib.figures").joinpath(name).read_text(encoding="utf-8")


def in_page(hands: Hands, script: str, call: str, cases: list[Any]) -> list[Any]:
    """Results of an expression in `args`, evaluated behind a figure's script, for every case."""
    code = f"{source('base.js')}\n{source(script)}\nreturn cases.map((args) => {call});"
    return hands.page.evaluate("([code, cases]) => new Function('cases', code)(cases)", [code, cases])


def test_roofline_formula(hands: Hands) -> None:
    rng = np.random.default_rng(2)
    cases, expected = [], []
    for _ in range(400):
        cfg = replace(MODELS[str(rng.choice(list(MODEL_KINDS)))], bytes_per_kv=float(rng.choice(KV_BYTES)))
        gpu = GPUS[str(rng.choice(GPU_NAMES))]
        batch, context = int(2 ** rng.uniform(0, 16)), int(2 ** rng.uniform(0, 17))
        heads = {"kv_numbers": 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim}
        model = {"n_params": cfg.n_params, "weights": cfg.n_params * cfg.bytes_per_weight, **heads}
        model["attention"] = 4 * cfg.n_layers * cfg.n_heads * cfg.head_dim
        card = {"peak_flops": gpu.peak_flops, "bandwidth": gpu.bandwidth}
        cases.append([batch, context, model, cfg.bytes_per_kv, card])
        step = reference.decode_step(batch, context, cfg, gpu)
        expected.append([step.n_bytes, step.flops, step.t_memory, step.t_compute, step.t_step, step.tokens_per_s])
        expected[-1].append(step.bound == "compute")
    got = in_page(hands, "decode_roofline.js", "Object.values(formula(...args))", cases)
    np.testing.assert_allclose(np.array(got, dtype=float), np.array(expected, dtype=float), rtol=1e-9)


def test_speculative_formulas(hands: Hands) -> None:
    cases = [[alpha, gamma, c] for alpha in np.linspace(0, 1, 51) for gamma in range(0, 12) for c in (0, 0.15, 0.7)]
    got = in_page(hands, "speculative_rounds.js", "[expectedTokens(...args), speedup(...args)]", cases)
    expected = [[reference.expected_tokens(a, g), reference.speedup(a, g, c)] for a, g, c in cases]
    np.testing.assert_allclose(got, expected, rtol=1e-9)

    rng = np.random.default_rng(3)
    mixes = [[rng.dirichlet([0.5] * 4).tolist(), rng.dirichlet([0.5] * 4).tolist(), rng.random()] for _ in range(200)]
    flat = "((f) => [...f.draft, ...f.kept, ...f.resampled, f.acceptance])(formula(...args))"
    got = in_page(hands, "speculative_position.js", flat, mixes)
    expected = [np.hstack([parts(*mix)[key] for key in ("draft", "kept", "resampled", "acceptance")]) for mix in mixes]
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


# --- hands, eyes and screen readers -------------------------------------------------------------------------


def test_keyboard_alone(chromium: Any) -> None:
    page = chromium.new_page()
    page.set_content(output("speculative_rounds").html)
    hands = Hands(page)
    before = hands.read("speculative_rounds")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert hands.read("speculative_rounds")["speedup"] != before["speedup"]
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("dt").first.inner_text() == "Mean of 24 rounds"
    page.set_content(output("interference").html)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.get_by_label("Chunked").is_checked()
    page.close()


def test_nothing_jumps_and_nothing_overflows(chromium: Any, html: str) -> None:
    """Moving controls leaves the height of every figure alone, from 320 to 1,400 px, and nothing sticks out."""
    for width in (320, 400, 768, 1400):
        page = chromium.new_page(viewport={"width": width, "height": 800})
        heights = {}
        for name in FIGURES:
            page.set_content(f"<!doctype html><body style='margin:0'>{output(name).html}</body>")
            seen = page.evaluate(
                """() => {
                  const [root] = document.querySelectorAll(".llf");
                  const seen = new Set([root.offsetHeight]);
                  for (const e of root.querySelectorAll("input")) {
                    if (e.type === "radio") e.click();
                    else for (const v of [0, e.max, Math.floor(e.max / 2)]) {
                      e.value = v;
                      e.dispatchEvent(new Event("input", { bubbles: true }));
                      seen.add(root.offsetHeight);
                    }
                    seen.add(root.offsetHeight);
                  }
                  for (const e of root.querySelectorAll("button")) {
                    e.click();
                    seen.add(root.offsetHeight);
                  }
                  const drawn = [...root.querySelectorAll("svg *, dd, button, p")];
                  const wide = Math.max(...drawn.map((e) => e.getBoundingClientRect().right));
                  return [[...seen], wide, document.documentElement.scrollWidth];
                }"""
            )
            heights[name] = seen
        page.close()
        for name, (seen, right, scroll) in heights.items():
            assert len(seen) == 1, (name, width, seen)
            assert right <= width + 1, (name, width, right)
            assert scroll <= width, (name, width, scroll)


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, from the npm registry once."""
    home = ROOT / ".cache" / "axe"
    script = home / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no npm: axe-core cannot be installed")
        home.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(home), "axe-core@4"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            pytest.skip(f"npm could not install axe-core: {done.stderr[-200:]}")
    return script.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1000])
def test_axe_finds_nothing(chromium: Any, axe: str, scheme: str, width: int) -> None:
    def broken(*args: Any) -> None:
        raise NotImplementedError

    shown = [*map(output, FIGURES), figures.batching(broken)]
    body = "".join(figure.html for figure in shown)
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page.set_content(f"<!doctype html><html lang='en'><title>Figures</title><main><h1>Figures</h1>{body}</main></html>")
    page.evaluate(axe)
    found = page.evaluate("axe.run('.llf').then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))")
    assert found == []
    page.close()


def test_themes_of_the_front_ends(chromium: Any) -> None:
    """The front end's own theme wins over the system's."""
    page = chromium.new_page(color_scheme="light")
    for opening, dark in (
        ("<html>", False),
        ("<html theme=dark>", True),
        ("<html><body data-jp-theme-light=false>", True),
        ("<html><body class=vscode-dark>", True),
    ):
        page.set_content(f"<!doctype html>{opening}{output('interference').html}")
        colour = page.evaluate("getComputedStyle(document.querySelector('.llf')).backgroundColor")
        assert colour == ("rgb(22, 24, 29)" if dark else "rgb(255, 255, 255)"), opening
    page.close()


def test_the_same_figure_twice_stays_two_figures(chromium: Any) -> None:
    page = chromium.new_page()
    page.set_content(output("interference").html * 2)
    second = page.locator(".llf").nth(1)
    second.get_by_label("Chunked").check(force=True)
    assert page.locator(".llf").nth(0).get_by_label("One piece").is_checked()
    assert page.locator(".live").count() == 2
    page.close()


def test_live_in_a_sandboxed_frame_and_still_without_scripts(chromium: Any) -> None:
    page = chromium.new_page()
    for sandbox, live in (("allow-scripts", 1), ("", 0)):
        page.set_content("<iframe id=f width=900 height=700></iframe>")
        page.evaluate(
            """([html, sandbox]) => {
              Object.assign(f, { sandbox, srcdoc: html });
              return new Promise((ok) => (f.onload = ok));
            }""",
            [output("batching").html, sandbox],
        )
        frame = page.frames[-1]
        assert frame.locator(".live").count() == live
        assert frame.locator("img").count() == 1 - live
    page.close()


def test_a_learners_answer_is_marked_where_it_differs(chromium: Any) -> None:
    def doubled(batch: int, context: int, cfg: Any, gpu: Any) -> Any:
        right = reference.decode_step(batch, context, cfg, gpu)
        return replace(right, t_step=2 * right.t_step, tokens_per_s=right.tokens_per_s / 2)

    page = chromium.new_page()
    page.set_content(figures.decode_roofline(doubled).html)
    hands = Hands(page)
    for index in (0, 3, 9):
        hands.move("decode_roofline", "Batch B", index)
        batch = stops(GRIDS[0], 1024, MODELS["Llama-3-8B"], GPUS["H100-SXM"])[index]
        right = reference.decode_step(batch, 1024, MODELS["Llama-3-8B"], GPUS["H100-SXM"])
        assert hands.read("decode_roofline")["t_step"] == pytest.approx(2 * right.t_step, rel=1e-3)
        assert "Dashed: the reference" in page.locator(".says.differs").inner_text()
        assert page.locator("svg .ghost").count() == 2
    page.close()


# --- JupyterLab ---------------------------------------------------------------------------------------------


def test_jupyterlab(chromium: Any, jupyterlab: Callable[[], tuple[str, Path]]) -> None:
    """Untrusted: the still pictures. Run: live figures, every control moved."""
    from playwright.sync_api import TimeoutError

    url, folder = jupyterlab()
    nbformat.write(notebook(), folder / "figures.ipynb")
    page = chromium.new_page(viewport={"width": 1280, "height": 5200})
    page.set_default_timeout(60_000)
    page.goto(f"{url}/lab/tree/figures.ipynb")
    page.get_by_text("Python 3").first.wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for()
    stills = page.locator(".jp-OutputArea img[src^='data:image/svg+xml']")
    stills.nth(len(FIGURES) - 1).wait_for()
    assert stills.evaluate_all("(images) => images.every((e) => e.complete && e.naturalWidth > 300 && e.alt)")
    assert page.locator(".llf .live").count() == 0

    live = page.locator(".llf .live")
    for _ in range(3):  # a menu may open before its command does anything
        page.locator(".lm-MenuBar-itemLabel", has_text="Run").click()
        page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
        with contextlib.suppress(TimeoutError):
            live.nth(len(FIGURES) - 1).wait_for(timeout=15_000)
            break
    assert live.count() == len(FIGURES)
    hands = Hands(page)
    for walk in WALKS.values():
        walk(hands, False)
    page.close()
