"""The text model's weights as the engine runs them: few large products per layer, norms folded in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.ops import LayerWeights, Shape
from wamdiff2_core.decode.engine.triton_fp8 import Fp8Weight, quantise, quantise_layer
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel

HEAD_SIZES = (16, 32, 64, 128, 256)
MOST_GROUP = 16  # query heads that share a key head


@dataclass(frozen=True)
class TextWeights:
    """Everything a pass reads and never writes.

    embed (V, H); head (V, H): the output projection with the final norm's weight multiplied in; cos, sin (M, D): turns
    of text at positions 0 .. M - 1, where all three parts of a position are equal.
    """

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    head: Tensor | Fp8Weight
    cos: Tensor
    sin: Tensor
    shape: Shape

    @property
    def hidden_size(self) -> int:
        return self.embed.shape[1]

    @property
    def vocab_size(self) -> int:
        return self.embed.shape[0]

    @property
    def positions(self) -> int:
        """How many positions the table holds."""
        return self.cos.shape[0]


@torch.inference_mode()
def pack(loaded: LoadedModel, positions: int, fp8: bool = False) -> TextWeights:
    """Copy the text model's weights into the engine's form, with turns for `positions` places; fp8: in 8 bits.

    Raises ConfigError, with expected and actual, for a model that the engine cannot run.
    """
    text, config = loaded.model.model.language_model, loaded.config.text_config
    check_model(text, config)
    shape = shape_of(text, config)
    places = torch.arange(positions, device=loaded.device).expand(3, 1, -1)
    cos, sin = text.rotary_emb(text.embed_tokens.weight[:1, None], places)
    layers = (_layer(layer, shape) for layer in text.layers)
    head = _folded(loaded.model.lm_head.weight, text.norm.weight)
    return TextWeights(
        embed=text.embed_tokens.weight,
        layers=tuple(quantise_layer(layer) if fp8 else layer for layer in layers),
        head=quantise(head) if fp8 else head,
        cos=cos[0].contiguous(),
        sin=sin[0].contiguous(),
        shape=shape,
    )


def shape_of(text: Any, config: Any) -> Shape:
    """Sizes that all layers of transformers' text model share. config: its text_config."""
    attention = text.layers[0].self_attn
    return Shape(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        scale=attention.scaling,
        eps=config.rms_norm_eps,
    )


def _layer(layer: Any, shape: Shape) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
    norms = (attention.q_norm.weight.expand(shape.heads, -1), attention.k_norm.weight.expand(shape.kv_heads, -1))
    return LayerWeights(
        qkv=_folded(qkv, layer.input_layernorm.weight),
        out=attention.o_proj.weight.contiguous(),
        gate_up=_folded(gate_up, layer.post_attention_layernorm.weight),
        down=mlp.down_proj.weight.contiguous(),
        head_norm=torch.cat(norms).contiguous(),
    )


def _folded(weight: Tensor, norm: Tensor) -> Tensor:
    """A linear weight (O, I) that takes the place of `norm` (I,) and itself."""
    return (weight.float() * norm.float()).to(weight.dtype)


def check_model(text: Any, config: Any) -> None:
    """ConfigError, with expected and actual, for a text model that no kernel set of the engine runs."""
    if config.hidden_act != "silu":
        raise ConfigError(f"engine: expected activation silu, got {config.hidden_act}")
    size, heads, kv_heads = text.layers[0].self_attn.head_dim, config.num_attention_heads, config.num_key_value_heads
    if size not in HEAD_SIZES:
        raise ConfigError(f"engine: expected a head size of {HEAD_SIZES}, got {size}")
    if heads % kv_heads or heads // kv_heads > MOST_GROUP:
        raise ConfigError(
            f"engine: expected up to {MOST_GROUP} query heads for each key head, got {heads} and {kv_heads}"
        )
    biased = [name for name, _ in text.named_parameters() if name.endswith(".bias")]
    if biased:
        raise ConfigError(f"engine: expected a text model without biases, got {biased[0]} and {len(biased) - 1} more")
