"""The project itself: lean for learners, one source for each list, two commands that exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lessonlib import cli, hint, require

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_learners_need_numpy_and_matplotlib_alone() -> None:
    names = [re.split(r"[><=]", dependency)[0] for dependency in PYPROJECT["dependencies"]]
    assert names == ["numpy", "matplotlib"]
    assert all("<" not in dependency for dependency in PYPROJECT["dependencies"]), "lower bounds only"
    assert PYPROJECT["requires-python"] == ">=3.11"


def test_import_is_lean() -> None:
    """Importing lessonlib and its checks loads nothing heavy (time itself is measured in the benchmarks)."""
    names = "MODELS, check, hint, quiz, require"
    code = f"import sys; from lessonlib import {names}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"matplotlib", "torch", "nbgrader", "nbformat", "IPython", "scipy", "pandas", "jupytext"}
    assert heavy.isdisjoint(loaded)


def test_environment_yml_is_in_step_with_pyproject() -> None:
    lines = [line.strip() for line in (ROOT / "environment.yml").read_text().splitlines()]
    packages = [line.removeprefix("- ") for line in lines if line.startswith("- ") and line != "- conda-forge"]
    assert packages == ["python>=3.11,<3.14", "pip", "pip:", "-e .[dev]"]
    assert "dev" in PYPROJECT["optional-dependencies"]
    assert any(PYPROJECT["requires-python"].removeprefix(">=") in package for package in packages)


def test_make_help_has_a_line_for_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony
    for target in phony[1].split():
        assert re.search(rf"^  make {target} ", shown, re.MULTILINE), target


def test_no_address_of_a_registry_or_hub_stands_in_a_file() -> None:
    hosts = [
        "pypi" + ".org",
        "python" + "hosted.org",
        "registry" + ".npmjs",
        "download" + ".pytorch",
        "deb" + ".debian",
    ]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for name in tracked.splitlines():
        path = ROOT / name
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not [host for host in hosts if host in text], name


def test_work_copies_new_lessons_and_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "work"
    assert cli.main(["work", str(folder)]) == 0
    mine = folder / "01_kv_cache.ipynb"
    mine.write_text("my answers")
    assert cli.main(["work", str(folder)]) == 0
    assert mine.read_text() == "my answers"
    assert capsys.readouterr().out.count("01_kv_cache.ipynb") == 1


def test_require_says_so_on_a_mismatch(capsys: pytest.CaptureFixture[str]) -> None:
    require(PYPROJECT["version"])
    assert capsys.readouterr().out == ""
    require("9.9")
    assert "built for lessonlib 9.9" in capsys.readouterr().out


def test_hints_come_one_at_a_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint, "_shown", {})
    for number in (1, 2, 3, 3):
        hint.max_batch()
        assert capsys.readouterr().out.startswith(f"Hint {number} of 3:")
    with pytest.raises(AttributeError, match="no hint for 'nothing'"):
        _ = hint.nothing
