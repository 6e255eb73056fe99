"""The benchmarks run: their smallest runs, on the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="the benchmarks compare with transformers")

from benchmarks import bench_gpu
from benchmarks.__main__ import TITLES, section


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
    assert section("bench_gpu").startswith("Not run")


def test_sections_that_are_missing_say_so() -> None:
    assert set(TITLES) >= {"bench_engine", "bench_gpu"}
    assert section("bench_nothing") == "Not run: it is not in this checkout."
