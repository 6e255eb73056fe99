"""Tiny models with random weights, and prompts for them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the engine needs torch: pip install 'lessonlib[capstone]'")

from lessonlib.serving import Decoder, random_weights, tiny_config  # noqa: E402

# Lengths of prompts: one token, just below, on and above the borders of blocks of 16, and several blocks.
LENGTHS = (1, 5, 15, 16, 17, 31, 32, 33, 48, 63, 64, 100)


@pytest.fixture(scope="session", autouse=True)
def few_threads() -> None:
    torch.set_num_threads(1)  # tiny matrices: a second thread only waits


@pytest.fixture(scope="session")
def tiny() -> Decoder:
    return make_tiny("llama")


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, n).tolist() for n in LENGTHS]


def make_tiny(kind: str, seed: int = 0, **changes: object) -> Decoder:
    cfg = tiny_config(kind, **changes)
    return Decoder(cfg, random_weights(cfg, seed, scale=0.3))
