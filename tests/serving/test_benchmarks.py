"""The benchmarks run: their smallest runs, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the benchmarks compare with transformers")

import benchmarks.__main__
from benchmarks import bench_gpu
from benchmarks.__main__ import section


def test_gpu_bench_smoke() -> None:
    lines = list(bench_gpu.tables(smoke=True))
    rows = [line for line in lines if line.startswith("| batch")]
    assert len(rows) == 2
    assert all(float(row.split("|")[4]) > 0 for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_bench_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench_gpu"])
    with pytest.raises(SystemExit, match="--smoke"):
        bench_gpu.main()
    assert section("bench_gpu") is None


Record = Callable[[str, dict[str, str]], dict[str, str]]


@pytest.fixture
def record_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """The sections of a record after a run on it, in which the benchmarks print what is given, or do not run."""

    def run(record: str, printed: dict[str, str]) -> dict[str, str]:
        report = tmp_path / "BENCHMARKS.md"
        report.write_text(record)
        monkeypatch.setattr(benchmarks.__main__, "REPORT", report)
        monkeypatch.setattr(benchmarks.__main__, "section", printed.get)
        monkeypatch.setattr(benchmarks.__main__, "processor", lambda: "This one")
        monkeypatch.setattr("sys.argv", ["benchmarks"])
        benchmarks.__main__.main()
        return benchmarks.__main__.recorded()

    return run


def test_what_does_not_run_here_keeps_its_record(record_after: Record) -> None:
    old = (
        "# Benchmarks\n\n## The engine on a GPU\n\n2026-01-01; a GPU.\n\n| batch |\n\n## The serving simulator\n\nold\n"
    )
    kept = record_after(old, {"bench_simulator": "new"})
    assert kept["The engine on a GPU"] == "2026-01-01; a GPU.\n\n| batch |"
    assert kept["The serving simulator"] == "new"
    assert kept["Interactive figures"] == "Not run yet."
    assert list(kept) == list(benchmarks.__main__.TITLES.values())


def test_the_engine_keeps_a_section_for_each_processor(record_after: Record) -> None:
    old = "# Benchmarks\n\n## The serving simulator\n\nold\n\n## The engine on a CPU: Another\n\nits rows\n"
    kept = record_after(old, {"bench_engine": "new rows"})
    assert kept["The engine on a CPU: Another"] == "its rows"
    assert kept["The engine on a CPU: This one"] == "new rows"
    assert list(kept)[:3] == ["The engine on a CPU: Another", "The engine on a CPU: This one", "The serving simulator"]
