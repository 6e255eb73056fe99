"""What is fast and how fast, measured: run all with `python -m benchmarks`."""
