"""What is fast and how fast, measured: run all with `python -m benchmarks`."""

import lessonlib.serving  # noqa: F401 - before torch is loaded: it sets how threads wait, for all that is compared
