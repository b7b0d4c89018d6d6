"""Make a larger model that computes the same: `python -m training.grow SMALL --out LARGE --layers 12 --width 3072`.

A teacher shall know more than its student. Grown from the student's own start it is as good from its first step and has
more room to learn in. Further layers begin as copies of the one below whose two outputs are zero, as in LLaMA Pro
(arXiv:2401.02415); wider feed-forward parts begin with zero weights on what is new (Net2Net, arXiv:1511.05641).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from wamdiff2_core.distill.checkpoint import save_folder
from wamdiff2_core.errors import CheckpointError, ConfigError
from wamdiff2_core.model.checkpoint import load_model

LAYER = re.compile(r"(.*language_model\.layers\.)(\d+)\.(.*)")
STILL = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # what a layer adds goes through these two


def sources(layers: int, more: int, fixed: int) -> list[tuple[int, bool]]:
    """(layer that each of the larger model's layers comes from, whether it is a further one).

    Between the first `fixed` layers nothing is put: there images are added to what passes from layer to layer.
    """
    slots = list(range(max(0, fixed - 1), layers))
    behind = [slots[k * len(slots) // more] for k in range(more)] if more else []
    return [place for layer in range(layers) for place in ((layer, False), *[(layer, True)] * behind.count(layer))]


def widened(name: str, weight: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """A feed-forward matrix for `width` inner units: the new ones are random inside and add nothing outside."""
    if name.endswith("mlp.down_proj.weight"):
        return torch.cat([weight, weight.new_zeros(weight.shape[0], width - weight.shape[1])], 1)
    if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
        new = torch.randn(width - weight.shape[0], weight.shape[1], generator=generator) * weight.std().item()
        return torch.cat([weight, new.to(weight.dtype)])
    return weight


def grow(small: Path, out: Path, layers: int, width: int, seed: int = 0) -> int:
    """Write the larger model's folder; its number of weights. ConfigError if it would not be larger."""
    loaded = load_model(small)
    config, text = loaded.config, loaded.config.text_config
    have = text.num_hidden_layers
    if layers < have or width < text.intermediate_size or (layers, width) == (have, text.intermediate_size):
        raise ConfigError(
            f"{small} has {have} layers of width {text.intermediate_size}: expected more, got {layers} of {width}"
        )
    plan = sources(have, layers - have, len(config.vision_config.deepstack_visual_indexes))
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, weight in loaded.model.state_dict().items():
        match = LAYER.fullmatch(name)
        if match is None:
            weights[name] = weight
            continue
        head, number, part = match[1], int(match[2]), match[3]
        for place, (source, further) in enumerate(plan):
            if source == number:
                wide = widened(name, weight, width, generator)
                weights[f"{head}{place}.{part}"] = torch.zeros_like(wide) if further and part in STILL else wide
    text.num_hidden_layers, text.intermediate_size = layers, width
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[source] for source, _ in plan]
    model = Qwen3VLForConditionalGeneration(config).float()
    missing, unknown = model.load_state_dict(weights, strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:
        raise CheckpointError(f"{small}: layers are not named as expected: {[*missing, *unknown][:3]}")
    save_folder(model, small, out, {name: weight.to(torch.bfloat16) for name, weight in model.named_parameters()})
    return sum(weight.numel() for weight in model.parameters())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("small", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=3072, help="inner width of the feed-forward parts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    count = grow(options.small, options.out, options.layers, options.width, options.seed)
    print(f"{options.out}: {count / 1e6:.1f} M weights")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
