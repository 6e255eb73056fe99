"""Decode speed of llama.cpp, where `llama-cpp-python` is installed, with the engine's weights in float32 or float16."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from lessonlib.serving.weights import smollm2_gguf

OWN_FIELDS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def write_plain_gguf(source: Path, target: Path, dtype: type[np.floating]) -> None:
    """Copy a GGUF file with its matrices dequantised to dtype; vectors are kept in float32, as llama.cpp wants them."""
    from gguf import GGUFReader, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(source)
    writer = GGUFWriter(target, arch="llama")
    for name, field in reader.fields.items():
        if not name.startswith(OWN_FIELDS):
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, sub_type=inner[0] if inner else None)
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, weight.astype(dtype if weight.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decode_seconds(dtype: type[np.floating], prompt: list[int], n: int, n_threads: int) -> float:
    """Median greedy step of one sequence.

    Raises:
        ImportError: `llama-cpp-python` is not installed.
    """
    from llama_cpp import Llama

    source = smollm2_gguf()
    assert source is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_plain_gguf(source, path, dtype)
        llm = Llama(str(path), n_ctx=len(prompt) + n + 1, n_threads=n_threads, verbose=False)
        llm.eval(prompt)
        times = []
        for _ in range(n):
            start = time.perf_counter()
            llm.eval([int(np.argmax(llm.eval_logits[-1]))])
            times.append(time.perf_counter() - start)
        llm.close()
    return statistics.median(times)
