"""How probable a finished answer is to the model when parts of it are masked again.

Every position is masked once, together with every `stride`-th other position of its block; the rest of the block and
all blocks before it stand there clean. One pass over `stride` copies of each answer tells the probability of every
token. With a stride of 1 the whole block is masked: what the first denoising step knows. Positions that a scaffold
gives say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.decoder import BlockDecoder, Prefix
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.decode.segment import Segment, join, prompt_segment
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.masks import Part, label

STRIDE = 2


@torch.inference_mode()
def remasked_log_likelihood(
    decoder: BlockDecoder,
    prefix: Prefix,
    rests: Sequence[Tensor],
    answers: Sequence[Sequence[int]],
    block_size: int,
    scaffold: Scaffold | None = None,
    stride: int = STRIDE,
) -> list[float]:
    """Natural logarithm of the product of all free tokens' probabilities, one value per answer.

    prefix, rests: what the answers were made behind (`BlockDecoder.generate`). ConfigError for a model without a mask
    token or with block-causal context, or for answers of different lengths.
    """
    loaded = decoder.loaded
    lengths = {len(answer) for answer in answers}
    if loaded.mask_token_id is None or loaded.context != "causal" or len(lengths) != 1 or prefix.tail is not None:
        raise ConfigError(f"likelihood: expected a mask token, causal context and answers of one length, got {lengths}")
    if stride < 1 or block_size < 1 or min(lengths) < 1:
        raise ConfigError(f"likelihood: expected a stride, a block size and answers of 1 or more, got {stride}")
    copies = [k for k in range(len(answers)) for _ in range(stride)]
    true = torch.tensor([list(answers[k]) for k in copies], device=loaded.device)
    free = _free(scaffold, true)
    turn = torch.arange(len(copies), device=loaded.device)[:, None] % stride
    asked = free & (torch.arange(true.shape[1], device=loaded.device) % stride == turn)
    hidden = _hidden(decoder, prefix, [rests[k] for k in copies], true, asked, block_size)
    logits = loaded.model.lm_head(hidden).float()
    logits[..., loaded.mask_token_id] = -torch.inf
    if scaffold is not None:
        table = scaffold.table(Vocabulary.of(loaded).size, loaded.device)[: true.shape[1]]
        logits[:, : len(table)] = logits[:, : len(table)].masked_fill(~table, -torch.inf)
    log = torch.log_softmax(logits, -1).gather(-1, true[..., None])[..., 0]
    total = torch.where(asked, log.clamp(min=-70.0), 0.0).sum(1)
    return total.view(len(answers), stride).sum(1).tolist()


def _free(scaffold: Scaffold | None, true: Tensor) -> Tensor:
    given = () if scaffold is None else scaffold.given[: true.shape[1]]
    free = torch.ones_like(true, dtype=torch.bool)
    for position, token in enumerate(given):
        free[:, position] = token < 0
    return free


def _hidden(
    decoder: BlockDecoder, prefix: Prefix, rests: list[Tensor], true: Tensor, asked: Tensor, block_size: int
) -> Tensor:
    """Hidden states (R, N, H) that predict each answer position, in one pass."""
    loaded, count = decoder.loaded, true.shape[1]
    prompt = prompt_segment(loaded, rests, None, None, block_size, prefix.length, prefix.next_position)
    text = loaded.model.model.language_model
    order = torch.arange(count, device=true.device).expand(true.shape)
    clean = text.embed_tokens(true)
    cos, sin = text.rotary_emb(clean, (prompt.next_position[:, None] + order).expand(3, -1, -1))
    noisy = text.embed_tokens(torch.where(asked, loaded.mask_token_id or 0, true))
    parts = [
        Segment(embeds, cos, sin, label(part, order, block_size))
        for embeds, part in ((clean, Part.CLEAN), (noisy, Part.NOISY))
    ]
    segment = join([prompt.segment, *parts])
    cache = prefix.cache.grown(prefix.length + segment.width, len(rests))
    hidden = decoder.forward(segment, cache)
    width = prompt.segment.width
    clean_hidden, noisy_hidden = hidden[:, width : width + count], hidden[:, width + count :]
    if loaded.prediction == "same":
        return noisy_hidden
    last = hidden[torch.arange(len(rests), device=hidden.device), prompt.lengths - 1]
    from_clean = torch.cat([last[:, None], clean_hidden[:, :-1]], 1)  # the token before a block is clean
    from_noisy = torch.cat([last[:, None], noisy_hidden[:, :-1]], 1)
    return torch.where((order % block_size == 0)[..., None], from_clean, from_noisy)
