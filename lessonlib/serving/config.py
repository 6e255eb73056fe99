"""What a decoder needs to know beyond its shape: rotary base, norm epsilon, biases, QK norms, tied embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lessonlib.models import ModelConfig

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-family decoder: pre-norm blocks of grouped-query attention with RoPE, and a gated SiLU MLP.

    Args:
        shape: layers, heads, widths and vocabulary, as everywhere in the course.
        rope_theta: base of the rotary angles (Su et al. 2021, arXiv 2104.09864).
        norm_eps: epsilon inside the root of RMSNorm.
        max_positions: longest sequence that the model was trained for, in tokens.
        tied_embeddings: whether the output matrix is the embedding table.
        qkv_bias: biases on query, key and value projections (Qwen2).
        qk_norm: RMSNorm over each query and key head before RoPE (Qwen3).
        rope_scaling: the "llama3" parameters that stretch slow rotations, or None.
        eos_ids: tokens that end a sequence.
    """

    shape: ModelConfig
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048
    tied_embeddings: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_scaling: Mapping[str, float] | None = None
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], name: str = "model") -> DecoderConfig:
        """Read the `config.json` of a checkpoint.

        Raises:
            ValueError: another architecture, or a rotary scaling or sliding window that this decoder does not have.
        """
        kind = config.get("model_type")
        if kind not in ARCHITECTURES:
            raise ValueError(f"model_type must be one of {', '.join(ARCHITECTURES)}, got {kind!r}")
        if config.get("sliding_window") and config.get("use_sliding_window", kind == "mistral"):
            raise ValueError(f"sliding windows are not supported, got sliding_window = {config['sliding_window']!r}")
        if kind != "qwen2" and config.get("attention_bias"):
            raise ValueError(f"attention_bias is supported for qwen2 alone, got a {kind} with it")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type not in ("default", "llama3"):
            raise ValueError(f"rope_type must be 'default' or 'llama3', got {rope_type!r}")
        n_heads, hidden = config["num_attention_heads"], config["hidden_size"]
        eos = config.get("eos_token_id")
        tied = bool(config.get("tie_word_embeddings", False))
        shape = dict(
            n_layers=config["num_hidden_layers"],
            n_heads=n_heads,
            n_kv_heads=config.get("num_key_value_heads") or n_heads,
            head_dim=config.get("head_dim") or hidden // n_heads,
            hidden_size=hidden,
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
        )
        return cls(
            shape=ModelConfig(name, **shape, n_params=_n_params(**shape, tied=tied)),
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta", 10_000.0)),
            norm_eps=config.get("rms_norm_eps", 1e-6),
            max_positions=config.get("max_position_embeddings", 2048),
            tied_embeddings=tied,
            qkv_bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            rope_scaling=rope if rope_type == "llama3" else None,
            eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        )


def _n_params(
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    hidden_size: int,
    intermediate_size: int,
    vocab_size: int,
    tied: bool,
) -> int:
    """Ψ: attention, MLP and norms of every layer, the final norm, and one or two vocabulary tables."""
    attention = hidden_size * head_dim * (2 * n_heads + 2 * n_kv_heads)
    layer = attention + 3 * hidden_size * intermediate_size + 2 * hidden_size
    return n_layers * layer + hidden_size + vocab_size * hidden_size * (1 if tied else 2)


def tiny_config(kind: str = "llama", **changes: Any) -> DecoderConfig:
    """A decoder of some 100,000 parameters for fast tests; `changes` are fields of a Hugging Face config."""
    fields = dict(
        model_type=kind,
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24 if kind == "qwen3" else 16,
        vocab_size=256,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
    )
    return DecoderConfig.from_hf({**fields, **changes}, name=f"tiny-{kind}")
