"""Which functions an engine is made of: chosen once, when it is made, and named."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from wamdiff2_core.decode.engine.moves import Moves, TorchMoves
from wamdiff2_core.decode.engine.ops import Ops, TorchOps
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel

if TYPE_CHECKING:
    from wamdiff2_core.decode.engine.config import EngineConfig

KERNEL_SETS = ("torch", "torch_fp8", "triton", "triton_fp8")


@dataclass(frozen=True)
class KernelSet:
    """fp8: the engine packs its weights in 8 bits for these ops. choices: most tokens that ops choose for at once."""

    name: str
    ops: Ops
    moves: Moves
    fp8: bool = False
    choices: int | None = None


def kernel_set(name: str, loaded: LoadedModel, config: EngineConfig) -> KernelSet:
    """The set of that name, for this model and these sizes. "auto": triton where it can run, else torch.

    Raises ConfigError where the set cannot run: no CUDA device, no Triton, a type or sizes it does not know.
    """
    if name not in ("auto", *KERNEL_SETS):
        raise ConfigError(f"engine kernels: expected 'auto' or one of {KERNEL_SETS}, got {name!r}")
    problem = _problem(loaded)
    if name == "auto":
        name = "torch" if problem else "triton"
    if name == "torch":
        return plain_set(loaded, config)
    if name == "torch_fp8":
        return replace(plain_set(loaded, config, Fp8TorchOps(config.page_size)), fp8=True)
    if problem:
        raise ConfigError(f"engine kernels {name}: {problem}")
    return _triton(name, loaded, config)


def plain_set(loaded: LoadedModel, config: EngineConfig, ops: Ops | None = None) -> KernelSet:
    """Plain PyTorch, with other ops if given."""
    moves = TorchMoves(config.page_size, config.max_length, loaded.context == "block_causal")
    ops = ops or TorchOps(config.page_size)
    return KernelSet(ops.name, ops, moves)


def _problem(loaded: LoadedModel) -> str | None:
    """Why the Triton kernels cannot run this model here; None: they can."""
    if loaded.device.type != "cuda":
        return f"expected a CUDA device, got {loaded.device}"
    if importlib.util.find_spec("triton") is None:
        return "expected the package triton, which is not installed"
    dtype = _dtype(loaded)
    if dtype not in (torch.bfloat16, torch.float32):
        return f"expected bfloat16 or float32, got {dtype}"
    return None


def _triton(name: str, loaded: LoadedModel, config: EngineConfig) -> KernelSet:
    from wamdiff2_core.decode.engine.moves_triton import TritonMoves
    from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps
    from wamdiff2_core.decode.engine.triton_table import BUCKETS

    text, fp8 = loaded.config.text_config, name == "triton_fp8"
    most, block = config.rows[-1], config.block_sizes[-1]
    try:
        sizes = Sizes(
            tokens=min(2 * most * block, BUCKETS[-1]),
            rows=most,
            places=config.max_length,
            hidden=text.hidden_size,
            heads=text.num_attention_heads,
            kv_heads=text.num_key_value_heads,
            head_dim=loaded.model.model.language_model.layers[0].self_attn.head_dim,
            ffn=text.intermediate_size,
            vocab=loaded.vocab_size,
        )
        ops = TritonOps(config.page_size, sizes, dtype=_dtype(loaded), device=loaded.device, fp8=fp8)
    except ValueError as error:
        raise ConfigError(f"engine kernels {name}: {error}") from error
    moves = TritonMoves(config.page_size, config.max_length, loaded.context == "block_causal")
    return KernelSet(name, ops, moves, fp8, sizes.tokens)


def _dtype(loaded: LoadedModel) -> torch.dtype:
    return loaded.model.model.language_model.embed_tokens.weight.dtype
