"""Tiny models with random weights, in the engine and in `transformers`, and what greedy decoding must give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the engine needs torch: pip install 'lessonlib[capstone]'")

from lessonlib.serving import Decoder, DecoderConfig, random_weights, tiny_config  # noqa: E402

Greedy = Callable[[list[int], int], list[int]]

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


def transformers_model(model: Decoder, kind: str):
    """The same weights in `transformers`, eager and in float32."""
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    cfg: DecoderConfig = model.cfg
    s = cfg.shape
    hf_config = transformers.AutoConfig.for_model(
        kind,
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
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    hf_model = transformers.AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32).eval()
    missing, unexpected = hf_model.load_state_dict(random_weights(cfg, 0, scale=0.3), strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if cfg.tied_embeddings else set())
    return hf_model


@pytest.fixture(scope="session")
def greedy_of_transformers() -> Callable[[Decoder, str], Greedy]:
    def of(model: Decoder, kind: str) -> Greedy:
        hf_model = transformers_model(model, kind)

        def greedy(prompt: list[int], n: int) -> list[int]:
            out = hf_model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=n,
                do_sample=False,
            )
            return out[0, len(prompt) :].tolist()

        return greedy

    return of
