"""The Triton kernel: equal to the readable reference in Triton's interpreter, and compiled for its GPUs.

Each test runs in a process of its own: whether kernels are interpreted is settled when triton is first imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the Triton kernel needs triton, which is not installed")


def _older(package: str, *than: int) -> bool:
    return tuple(int(part) for part in version(package).split(".")[:2]) < than


IN_INTERPRETER = """
import torch
from lessonlib.serving.attention import paged_attention
from lessonlib.serving.triton_attention import paged_decode

rng = torch.Generator().manual_seed(0)
# sequences, query heads, KV heads, d_h, block size, splits; d_h 24 and g 3 are no powers of two
CASES = [(3, 4, 2, 16, 4, None), (2, 9, 3, 64, 16, 3), (2, 4, 4, 24, 1, 5), (1, 8, 1, 32, 7, 32), (2, 6, 2, 16, 64, 1)]
for B, a, n_kv, d, block_size, n_splits in CASES:
    longest = 150
    n_blocks = 2 * (longest // block_size + 1)
    k, v = torch.randn((2, n_blocks, block_size, n_kv, d), generator=rng)
    k[-1] = v[-1] = float("nan")  # a block that no table holds
    tables = torch.stack([torch.randperm(n_blocks - 1, generator=rng)[: n_blocks // 2] for _ in range(B)])
    lengths = torch.randint(1, longest, (B,), generator=rng)
    lengths[0] = 2 * block_size  # ends on the border of a block
    q = torch.randn((B, a + n_kv, d), generator=rng)[:, :a]  # rows lie apart, as in the model
    got = paged_decode(q, k, v, tables, lengths, n_splits)
    want = torch.stack([paged_attention(q[i], k, v, tables[i].tolist(), int(lengths[i])) for i in range(B)])
    assert torch.allclose(got, want, atol=1e-5), (B, a, n_kv, d, block_size, n_splits, (got - want).abs().max())

assert (paged_decode(q, k, v, tables, torch.zeros_like(lengths)) == 0).all()
"""

TO_A_CUBIN = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from lessonlib.serving.triton_attention import TILE, _attend_to_split, _merge_splits

NUMBER, COUNT = "*bf16", "i32"
PARTIALS = {name: "*fp32" for name in ("partial", "highest", "total")}
KERNELS = [
    (
        _attend_to_split,
        {name: NUMBER for name in ("q", "k_cache", "v_cache")} | {"tables": "*i64", "lengths": "*i64"} | PARTIALS
        | {"scale": "fp32"} | {name: COUNT for name in ("q_stride", "table_stride", "block_size", "n_splits")},
        {"N_KV": 8, "G": 4, "D": 128, "PADDED_G": 16, "PADDED_D": 128, "TILE": TILE},
    ),
    (_merge_splits, PARTIALS | {"output": NUMBER, "n_splits": COUNT}, {"D": 128, "PADDED_S": 32, "PADDED_D": 128}),
]
for capability in (80, 90):
    for kernel, types, constants in KERNELS:
        signature = types | {name: "constexpr" for name in constants}
        compiled = compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32))
        assert len(compiled.asm["cubin"]) > 0
        assert compiled.metadata.shared < 100_000  # bytes of shared memory: 100 KiB on a 3090 or an L4
"""


def _run(program: str, **environment: str) -> None:
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(
    _older("triton", 3, 7) and not _older("numpy", 2, 4),
    reason="the interpreter of triton before 3.7 does not run with numpy 2.4 and later",
)
def test_equals_the_reference_in_the_interpreter() -> None:
    _run(IN_INTERPRETER, TRITON_INTERPRET="1")


def test_compiles_for_capabilities_8_and_9(tmp_path: Path) -> None:
    _run(TO_A_CUBIN, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
