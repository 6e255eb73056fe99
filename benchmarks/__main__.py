"""Run every benchmark that this machine can run, and write BENCHMARKS.md."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.machine import describe

TITLES = {
    "bench_engine": "The engine on a CPU",
    "bench_simulator": "The serving simulator",
    "bench_figures": "Interactive figures",
    "bench_gpu": "The engine on a GPU",
}
REPORT = Path(__file__).parent.parent / "BENCHMARKS.md"


class Tee(io.StringIO):
    """Keeps what is printed, and shows it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return super().write(text)


def section(name: str) -> str:
    """What one benchmark prints, or why it did not run."""
    if name == "bench_gpu" and not torch.cuda.is_available():
        return "Not run: this machine has no GPU (`make bench-gpu`)."
    if find_spec(f"benchmarks.{name}") is None:
        return "Not run: it is not in this checkout."
    printed = Tee()
    argv, sys.argv = sys.argv, [name]
    try:
        with contextlib.redirect_stdout(printed):
            import_module(f"benchmarks.{name}").main()
    except SystemExit as stop:
        return f"Not run: {stop}"
    finally:
        sys.argv = argv
    return printed.getvalue().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(TITLES), help=f"which of {', '.join(TITLES)}")
    names = parser.parse_args().names
    where = describe(torch.device("cpu"))
    parts = [
        "# Benchmarks",
        f"`python -m benchmarks` on {datetime.date.today():%Y-%m-%d}; {where}; torch {torch.__version__}.",
        "Ratios and shares are of one run; absolute speeds are this machine's. How each number is taken is said in the "
        "docstring of its module in `benchmarks/`.",
    ]
    for name in names:
        parts += [f"## {TITLES[name]}", section(name)]
        REPORT.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
