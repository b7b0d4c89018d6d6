"""The slow truth: decoding without a cache. Every step runs the whole sequence through transformers' own text model.

One row, [prompt | decided blocks | current block], one mask, nothing shared with the fast path but the block rules.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wamdiff2_core.decode.blocks import Vocabulary, apply_step, block_ranks, open_block, predict, scaffold_block
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.result import DecodeResult, Status
from wamdiff2_core.decode.sampling import sampler_of
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.masks import Labels, Part, attention_mask, concat, label
from wamdiff2_core.model.tokens import grids_of, mrope_positions


@torch.inference_mode()
def reference_generate(
    loaded: LoadedModel,
    input_ids: Tensor,
    pixel_values: Tensor | None = None,
    image_grid_thw: Tensor | None = None,
    config: DecodingConfig | None = None,
    scaffold: Scaffold | None = None,
) -> DecodeResult:
    """Answer one prompt (N,). Same arguments and same tokens as BlockDecoder.generate on one row."""
    config = config or DecodingConfig()
    vocabulary = Vocabulary.of(loaded)
    sampler, temperature = sampler_of(config, [config.temperature]), torch.tensor([config.temperature])
    eos = set(loaded.eos_token_ids)
    answer = torch.empty(0, dtype=torch.int64)
    confidences: list[float] = []
    steps: list[int] = []
    status, forwards = Status.TRUNCATED, 0
    for start in range(0, config.max_new_tokens, config.block_size):
        given, allowed = scaffold_block([scaffold], start, config.block_size, vocabulary)
        needed = torch.arange(start, start + config.block_size)[None] < config.max_new_tokens
        ranks = block_ranks([scaffold], start, config.block_size, given.device)
        state = open_block(given, needed, vocabulary, config, ranks)
        while bool(state.masked.any()):
            logits = block_logits(
                loaded, input_ids, answer, state.tokens[0], pixel_values, image_grid_thw, config.block_size
            )
            forwards += 1
            drawn = None if sampler is None else sampler.uniforms([0], state.masked)
            seen = predict(logits[None], allowed, vocabulary, drawn, temperature)
            if not bool(seen.usable.all()):
                steps.append(int(state.steps[0]) + 1)
                return DecodeResult(answer.tolist(), Status.INVALID, confidences, steps, forwards)
            apply_step(state, seen, vocabulary, config)
        steps.append(int(state.steps[0]))
        answer = torch.cat((answer, state.tokens[0]))
        confidences += state.confidence[0].tolist()
        if eos & set(state.tokens[0][needed[0]].tolist()):
            status = Status.COMPLETE
            break
    tokens_list = answer.tolist()[: config.max_new_tokens]
    length = next((i for i, token in enumerate(tokens_list) if token in eos), len(tokens_list))
    if loaded.mask_token_id is not None and loaded.mask_token_id in tokens_list[:length]:
        status = Status.INVALID
    elif status is Status.COMPLETE and length == 0:
        status = Status.EMPTY
    return DecodeResult(tokens_list[:length], status, confidences[:length], steps, forwards)


def block_logits(
    loaded: LoadedModel,
    prompt: Tensor,
    answer: Tensor,
    block: Tensor,
    pixel_values: Tensor | None,
    image_grid_thw: Tensor | None,
    block_size: int,
) -> Tensor:
    """Logits (B, V) that predict a noisy block (B,) after a prompt (N,) and the decided answer (a multiple of B)."""
    noisy = label(Part.NOISY, torch.arange(len(block)) + len(answer), block_size)
    labels = concat([*clean_labels(len(prompt), len(answer), block_size), noisy])
    ids = torch.cat((prompt, answer, block))
    logits = full_logits(loaded, ids, labels, pixel_values, image_grid_thw, prompt=len(prompt))
    return logits[-len(block) :] if loaded.prediction == "same" else logits[-len(block) - 1 : -1]


def clean_labels(prompt: int, answer: int, block_size: int) -> list[Labels]:
    """Labels of a prompt and of the clean answer after it."""
    return [
        label(Part.PROMPT, torch.arange(prompt), block_size),
        label(Part.CLEAN, torch.arange(answer), block_size),
    ]


@torch.inference_mode()
def full_logits(
    loaded: LoadedModel,
    ids: Tensor,
    labels: Labels,
    pixel_values: Tensor | None = None,
    image_grid_thw: Tensor | None = None,
    prompt: int | None = None,
) -> Tensor:
    """Logits (S, V) of a whole sequence (S,), through transformers' vision and text models and our mask.

    The first `prompt` tokens (None: all) may be images; positions go on from there.
    """
    model, config = loaded.model.model, loaded.config
    prompt = len(ids) if prompt is None else prompt
    merge = config.vision_config.spatial_merge_size
    places, free = mrope_positions(ids[:prompt], grids_of(image_grid_thw), config.image_token_id, merge)
    positions = torch.cat((places, torch.arange(free, free + len(ids) - prompt).expand(3, -1)), 1)
    embeds = model.language_model.embed_tokens(ids[None])
    where, deepstack = None, None
    if pixel_values is not None:
        seen = model.visual(pixel_values.to(embeds.dtype), grid_thw=image_grid_thw, return_dict=True)
        where = (ids == config.image_token_id)[None] & (torch.arange(len(ids)) < prompt)
        embeds = embeds.masked_scatter(where[..., None], seen.pooler_output)
        deepstack = seen.deepstack_features
    out = model.language_model(
        inputs_embeds=embeds,
        position_ids=positions[:, None],
        attention_mask=attention_mask(labels, labels, loaded.context)[None, None],
        visual_pos_masks=where,
        deepstack_visual_embeds=deepstack,
        use_cache=False,
    )
    return loaded.model.lm_head(out.last_hidden_state)[0].float()
