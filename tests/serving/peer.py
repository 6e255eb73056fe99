"""The engine's peer: the same weights in `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lessonlib.serving import DecoderConfig


def hf_config(cfg: DecoderConfig) -> dict[str, Any]:
    """A decoder's configuration in the words of a checkpoint's config.json."""
    s = cfg.shape
    return dict(
        model_type="qwen3" if cfg.qk_norm else "qwen2" if cfg.qkv_bias else "llama",
        num_hidden_layers=s.n_layers,
        hidden_size=s.hidden_size,
        intermediate_size=s.intermediate_size,
        num_attention_heads=s.n_heads,
        num_key_value_heads=s.n_kv_heads,
        head_dim=s.head_dim,
        vocab_size=s.vocab_size,
        max_position_embeddings=cfg.max_positions,
        rms_norm_eps=cfg.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": cfg.rope_theta, **(cfg.rope_scaling or {})},
        tie_word_embeddings=cfg.tied_embeddings,
    )


def transformers_model(
    cfg: DecoderConfig, weights: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.float32
) -> Any:
    """A causal model of `transformers` that stops at no token, so that lengths are what a caller asks for."""
    import transformers

    facts = hf_config(cfg)
    config = transformers.AutoConfig.for_model(
        facts.pop("model_type"), **facts, bos_token_id=None, eos_token_id=None, pad_token_id=0
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    missing, unexpected = model.load_state_dict({k: v.to(dtype) for k, v in weights.items()}, strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if cfg.tied_embeddings else set()):
        raise ValueError(f"the weights do not fit: {missing} are missing, {unexpected} are not known")
    model.tie_weights()
    return model


def greedy(model: Any, prompt: list[int], n: int) -> list[int]:
    """The n tokens that greedy decoding appends to one prompt."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
    return out[0, len(prompt) :].tolist()
