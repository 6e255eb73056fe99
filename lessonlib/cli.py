"""The command `lessonlib`: build the notebooks, open the course."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(prog="lessonlib", description="The course on LLM inference serving.")
    commands = parser.add_subparsers(dest="command", required=True)

    build = commands.add_parser("build", help="make solutions/ and notebooks/ from the lesson sources")
    build.add_argument("lesson", nargs="*", help="such as 01_kv_cache; all where none is named")
    build.add_argument("--check", action="store_true", help="change nothing, fail where a notebook is stale")
    build.add_argument("--no-run", action="store_true", help="with --check: compare all but outputs, and run nothing")
    build.add_argument("--graded", action="store_true", help="leave the folded solutions out of notebooks/")

    work = commands.add_parser("work", help="copy the learner notebooks into a folder, replacing nothing")
    work.add_argument("folder", nargs="?", default="work", type=Path)

    args = parser.parse_args(argv)
    if args.command == "build" and args.no_run and not args.check:
        parser.error("--no-run goes with --check: a build runs its lessons")
    if args.command == "work":
        return copy_to_work(args.folder)
    try:
        from lessonlib.course.build import main as run_build
    except ModuleNotFoundError as error:
        print(
            f'lessonlib build needs {error.name}: install the extra with pip install "lessonlib[instructor]"',
            file=sys.stderr,
        )
        return 1
    return run_build(args.lesson, args.check, folded=not args.graded, execute=not args.no_run)


def copy_to_work(folder: Path) -> int:
    """Copy each learner notebook that is not there yet; what a learner has worked on is never replaced."""
    notebooks = Path(__file__).resolve().parents[1] / "notebooks"
    found = sorted(notebooks.glob("*/*.ipynb"))
    if not found:
        print(f"no notebooks in {notebooks}: run this from a checkout of the course", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for path in found:
        mine = folder / path.name
        if not mine.exists():
            shutil.copyfile(path, mine)
            print(f"new in {folder}/: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
