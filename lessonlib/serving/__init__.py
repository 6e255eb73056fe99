"""An LLM server in miniature: paged KV cache, continuous batching, prefix caching, speculative decoding.

Read it in this order: `request`, `kv_cache`, `attention`, `model`, `block_manager`, `scheduler`, `sampler`, `runner`,
`speculative`, `engine`. The vocabulary is the field's; the ideas are those of the lessons.
"""

import os

# Before torch is loaded: threads that wait spin for a fraction of a millisecond, which is longer than what lies between
# two products of a step, and then sleep. Spinning without end made steps 20 times slower where others use the cores
# too; sleeping at once made them a third slower on idle ones.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from lessonlib.serving.attention import paged_attention
from lessonlib.serving.block_manager import BlockManager
from lessonlib.serving.config import DecoderConfig, tiny_config
from lessonlib.serving.engine import LLM
from lessonlib.serving.kv_cache import KVCache, slot_mapping, write_kv
from lessonlib.serving.metrics import Metrics, StepRecord
from lessonlib.serving.model import Decoder, random_weights
from lessonlib.serving.request import RequestOutput, SamplingParams
from lessonlib.serving.scheduler import Scheduler, admit
from lessonlib.serving.speculative import DraftModel, EarlyExit, PromptLookup, verify
from lessonlib.serving.tokenizer import Tokenizer
from lessonlib.serving.weights import choose_device, choose_dtype, load_model

__all__ = [
    "LLM",
    "BlockManager",
    "Decoder",
    "DecoderConfig",
    "DraftModel",
    "EarlyExit",
    "KVCache",
    "Metrics",
    "PromptLookup",
    "RequestOutput",
    "SamplingParams",
    "Scheduler",
    "StepRecord",
    "Tokenizer",
    "admit",
    "choose_device",
    "choose_dtype",
    "load_model",
    "paged_attention",
    "random_weights",
    "slot_mapping",
    "tiny_config",
    "verify",
    "write_kv",
]
