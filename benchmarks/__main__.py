"""Run every benchmark that this machine can run, and write BENCHMARKS.md.

A section that does not run here keeps what the record says of it: each names its own machine and day. The engine has
one section for each processor.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import platform
import re
import sys
from importlib import import_module
from pathlib import Path

import torch

TITLES = {
    "bench_engine": "The engine on a CPU",
    "bench_simulator": "The serving simulator",
    "bench_figures": "Interactive figures",
    "bench_gpu": "The engine on a GPU",
}
REPORT = Path(__file__).parent.parent / "BENCHMARKS.md"
INTRODUCTION = """\
# Benchmarks

`make bench` writes this file. Ratios and shares are of one run; absolute speeds are the machine's. How each number is
taken is said in the docstring of its module in `benchmarks/`."""


class Tee(io.StringIO):
    """Keeps what is printed, and shows it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return super().write(text)


def processor() -> str:
    """The name of this machine's CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def describe_machine(name: str) -> str:
    """The processor or GPU that a benchmark runs on."""
    return torch.cuda.get_device_name() if name == "bench_gpu" else f"{processor()}, {torch.get_num_threads()} threads"


def heading(name: str) -> str:
    """The heading of a benchmark's section."""
    return f"{TITLES[name]}: {processor()}" if name == "bench_engine" else TITLES[name]


def place(title: str) -> int:
    """Where a section of the record belongs."""
    return next((i for i, start in enumerate(TITLES.values()) if title.startswith(start)), len(TITLES))


def section(name: str) -> str | None:
    """What one benchmark prints, with machine and day; None where it cannot run."""
    if name == "bench_gpu" and not torch.cuda.is_available():
        print("no GPU here")
        return None
    printed = Tee()
    argv, sys.argv = sys.argv, [name]
    try:
        with contextlib.redirect_stdout(printed):
            import_module(f"benchmarks.{name}").main()
    except SystemExit as stop:
        print(f"not run: {stop}")
        return None
    finally:
        sys.argv = argv
    where = f"{datetime.date.today():%Y-%m-%d}; {describe_machine(name)}; torch {torch.__version__}."
    return f"{where}\n\n{printed.getvalue().strip()}"


def recorded() -> dict[str, str]:
    """The sections of the record as it stands, by their titles."""
    text = REPORT.read_text() if REPORT.exists() else ""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    return {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(TITLES), help=f"which of {', '.join(TITLES)}")
    for name in parser.parse_args().names:
        measured = section(name)
        if measured is None:
            continue
        sections = recorded() | {heading(name): measured}
        for missing in TITLES.values():
            if not any(title.startswith(missing) for title in sections):
                sections[missing] = "Not run yet."
        parts = [INTRODUCTION, *(f"## {title}\n\n{sections[title]}" for title in sorted(sections, key=place))]
        REPORT.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
