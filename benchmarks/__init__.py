"""What is fast and how fast, measured: run all with `python -m benchmarks`."""

import os

# Before torch is loaded: waiting threads sleep. On cores that others use too, threads that wait by spinning use up
# their share of time and then keep the others waiting, for 16 ms at a time. It is the same for all that is compared.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
