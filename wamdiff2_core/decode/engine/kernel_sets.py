"""Which functions an engine is made of: chosen once, when it is made, and named."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from wamdiff2_core.decode.engine.moves import Moves, TorchMoves
from wamdiff2_core.decode.engine.ops import Ops, Planner, Shape, TorchOps
from wamdiff2_core.decode.engine.prompt import bucket_of
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps
from wamdiff2_core.decode.engine.weights import shape_of
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.vision import Layer, vision_block

if TYPE_CHECKING:
    from wamdiff2_core.decode.engine.config import EngineConfig
    from wamdiff2_core.decode.engine.triton_ops import Sizes

KERNEL_SETS = ("torch", "torch_fp8", "triton", "triton_fp8", "flashinfer")
MOST_CHOICES = 128  # tokens whose logits plain operations on a GPU hold at once


@dataclass(frozen=True)
class KernelSet:
    """fp8: the engine packs its weights in 8 bits for these ops. choices: most tokens that ops choose for at once.

    image_layer: runs the layers of the image encoder, see `encode_batch`. planner: of ops whose attention is planned on
    the host. Such kernels multiply what a mask hides by zero, so they are never shown a value that is no number: the
    engine zeroes the values of places that a call's first pass does not write.
    """

    name: str
    ops: Ops
    moves: Moves
    fp8: bool = False
    choices: int | None = None
    image_layer: Layer = vision_block
    planner: Planner | None = None


def kernel_set(name: str, loaded: LoadedModel, config: EngineConfig) -> KernelSet:
    """The set of that name, for this model and these sizes. "auto": triton where it can run, else torch.

    Raises ConfigError where the set cannot run: no CUDA device, no Triton, no FlashInfer or no compiler for it, a type
    or sizes that it does not know.
    """
    if name not in ("auto", *KERNEL_SETS):
        raise ConfigError(f"engine kernels: expected 'auto' or one of {KERNEL_SETS}, got {name!r}")
    problem = why_not_triton(loaded.device, _dtype(loaded))
    if name == "auto":
        name = "torch" if problem else "triton"
    if name == "torch":
        return plain_set(loaded, config)
    if name == "torch_fp8":
        return replace(plain_set(loaded, config, Fp8TorchOps(config.page_size)), fp8=True)
    if name == "flashinfer":
        return _flashinfer(loaded, config)
    if problem:
        raise ConfigError(f"engine kernels {name}: {problem}")
    return _triton(name, loaded, config)


def plain_set(loaded: LoadedModel, config: EngineConfig, ops: Ops | None = None) -> KernelSet:
    """Plain PyTorch, with other ops if given."""
    moves = TorchMoves(config.page_size, config.max_length, loaded.context == "block_causal")
    ops = ops or TorchOps(config.page_size)
    return KernelSet(ops.name, ops, moves)


def why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the Triton kernels cannot run a model that lives there in that type; None: they can, if its sizes fit."""
    if device.type != "cuda":
        return f"expected a CUDA device, got {device}"
    if importlib.util.find_spec("triton") is None:
        return "expected the package triton, which is not installed"
    if dtype not in (torch.bfloat16, torch.float32):
        return f"expected bfloat16 or float32, got {dtype}"
    return None


def triton_release() -> str:
    """Of the package triton, which has to be there."""
    import triton

    return triton.__version__


def slower_here(device: torch.device) -> str | None:
    """What the Triton kernels that run on this device lack there, though it could have it; None: nothing."""
    from wamdiff2_core.decode.engine.triton_table import why_no_flow

    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    problem = why_no_flow(10 * major + minor, triton_release()) if major == 9 else None
    return problem and f"without weights ahead of their products: {problem}"


def triton_sizes(text: Any, config: EngineConfig) -> Sizes:
    """What scratch an engine of these sizes needs for a model with this text config. ConfigError: not made for it.

    Needs the package triton.
    """
    from wamdiff2_core.decode.engine.triton_ops import Sizes
    from wamdiff2_core.decode.engine.triton_table import BUCKETS

    most, block = config.rows[-1], config.block_sizes[-1]
    try:
        return Sizes(
            tokens=min(2 * most * block, BUCKETS[-1]),
            rows=most,
            places=config.max_length,
            hidden=text.hidden_size,
            heads=text.num_attention_heads,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            ffn=text.intermediate_size,
            vocab=text.vocab_size,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _triton(name: str, loaded: LoadedModel, config: EngineConfig) -> KernelSet:
    from wamdiff2_core.decode.engine.moves_triton import TritonMoves
    from wamdiff2_core.decode.engine.triton_ops import TritonOps
    from wamdiff2_core.decode.engine.triton_prompt import turned_heads
    from wamdiff2_core.decode.engine.triton_table import dependent, why_no_flow
    from wamdiff2_core.decode.engine.triton_vision import ACTIVATION, image_layer

    fp8 = name == "triton_fp8"
    try:
        sizes = triton_sizes(loaded.config.text_config, config)
        major, minor = torch.cuda.get_device_capability(loaded.device)
        pdl = dependent(10 * major + minor)
        flow = why_no_flow(10 * major + minor, triton_release()) is None
        ops = TritonOps(
            config.page_size, sizes, dtype=_dtype(loaded), device=loaded.device, fp8=fp8, pdl=pdl,
            flow=flow,
        )  # fmt: skip
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"engine kernels {name}: {error}") from error
    moves = TritonMoves(config.page_size, config.max_length, loaded.context == "block_causal", pdl)
    fused = loaded.config.vision_config.hidden_act == ACTIVATION
    layer = image_layer if fused else partial(vision_block, turn=turned_heads)
    return KernelSet(name, ops, moves, fp8, sizes.tokens, layer)


def why_not_flashinfer(device: torch.device, dtype: torch.dtype, shape: Shape | None, page_size: int) -> str | None:
    """Why FlashInfer's kernels cannot run a model of these sizes there, with the way out; None: they can.

    shape: None where it is not known yet.
    """
    from wamdiff2_core.decode.engine.flashinfer_ops import check_sizes, obstacle

    if device.type != "cuda":
        return f"expected a CUDA device, got {device}"
    try:
        check_sizes(shape, page_size, dtype)
    except ConfigError as error:
        return str(error).removeprefix("flashinfer: ")
    return obstacle()


def _flashinfer(loaded: LoadedModel, config: EngineConfig) -> KernelSet:
    """FlashInfer's kernels in the layers; what lies beside them is Triton's where it can run, else plain."""
    from wamdiff2_core.decode.engine.flashinfer_ops import FlashInferOps
    from wamdiff2_core.decode.engine.flashinfer_plan import workspace_bytes

    device, dtype = loaded.device, _dtype(loaded)
    shape = shape_of(loaded.model.model.language_model, loaded.config.text_config)
    problem = why_not_flashinfer(device, dtype, shape, config.page_size)
    if problem:
        raise ConfigError(f"engine kernels flashinfer: {problem}")
    rows, block = config.rows[-1], config.block_sizes[-1]
    longest = bucket_of(min(config.max_length, config.buckets[-1]), config.buckets) + block
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
    # Long prompts in many rows at once bring their own workspace when they are first asked for.
    forms = ((1, longest), (rows, 2 * block))
    ops = FlashInferOps(
        config.page_size, shape, rows=rows, tokens=rows * max(config.buckets[-1] + block, 2 * block),
        places=config.max_length, workspace=max(workspace_bytes(*form, shape, processors) for form in forms),
        dtype=dtype, device=device,
    )  # fmt: skip
    base = plain_set(loaded, config, ops)
    if why_not_triton(device, dtype) is None:
        from wamdiff2_core.decode.engine.moves_triton import TritonMoves
        from wamdiff2_core.decode.engine.triton_prompt import turned_heads

        moves = TritonMoves(config.page_size, config.max_length, loaded.context == "block_causal")
        base = replace(base, moves=moves, image_layer=partial(vision_block, turn=turned_heads))
    return replace(base, choices=MOST_CHOICES, planner=ops)


def _dtype(loaded: LoadedModel) -> torch.dtype:
    return loaded.model.model.language_model.embed_tokens.weight.dtype
