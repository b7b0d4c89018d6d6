"""The baselines: transformers as it is, and its forward with a static cache in a CUDA graph; both autoregressive."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

from benchmarks.speed_setup import Setup, median


@torch.inference_mode()
def eager_ar(setup: Setup) -> dict[str, Any]:
    """`generate`, greedy: tokens a second behind the first token."""
    model, count, found = setup.loaded.model, setup.sizes.slow_tokens, {}
    for prefix in setup.sizes.prefixes:
        ids = setup.ids(prefix)[None].to(setup.device)
        ask = partial(model.generate, ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0)
        share = setup.seconds / len(setup.sizes.prefixes) / 2
        one_token, many = (partial(ask, max_new_tokens=n) for n in (1, count + 1))
        first = median(setup.repeat(partial(setup.wall_ms, one_token), share, 2, 8))
        whole = median(setup.repeat(partial(setup.wall_ms, many), share, 2, 8))
        produced = many().shape[1] - prefix - 1
        ms = (whole - first) / produced
        found[str(prefix)] = {"tps": 1e3 / ms, "ms_per_token": ms, "first_token_ms": first, "tokens": produced}
    return {"prefixes": found}


@torch.inference_mode()
def graph_ar(setup: Setup) -> dict[str, Any]:
    """One token's forward and argmax captured once, replayed for each token; without a GPU: run as it is."""
    found = {}
    for prefix in setup.sizes.prefixes:
        step, reset = _static_step(setup, prefix)
        run: Callable[[], Any] = _captured(step, setup) if setup.cuda else step
        ms = median(setup.repeat(partial(_token_ms, setup, run, reset), setup.seconds / 2, 3, 50))
        found[str(prefix)] = {"tps": 1e3 / ms, "ms_per_token": ms, "captured": setup.cuda}
    return {"prefixes": found}


def _token_ms(setup: Setup, run: Callable[[], Any], reset: Callable[[], None]) -> float:
    """Milliseconds a token, several behind the prompt."""
    count = setup.sizes.slow_tokens
    reset()
    setup.sync()
    return setup.wall_ms(lambda: [run() for _ in range(count)]) / count


def _static_step(setup: Setup, prefix: int) -> tuple[Callable[[], Any], Callable[[], None]]:
    """(one token's step on fixed tensors, what puts them back behind the prompt)."""
    model, device = setup.loaded.model, setup.device
    text = model.model.language_model
    room = prefix + setup.sizes.slow_tokens + 8  # warm-up and capture move on as well
    cache = StaticCache(config=model.config.text_config, max_cache_len=room)
    name = "cache" if "cache" in inspect.signature(text.forward).parameters else "past_key_values"
    order = torch.arange(room, device=device)

    def forward(ids: Tensor, places: Tensor) -> Tensor:
        mask = order[None, None, None] <= places[None, None, :, None]
        turns = places.view(1, 1, -1).expand(4, 1, -1)
        seen = text(input_ids=ids, attention_mask=mask, position_ids=turns, use_cache=True, **{name: cache})
        return model.lm_head(seen.last_hidden_state[:, -1]).argmax(-1)

    token = forward(setup.ids(prefix)[None].to(device), order[:prefix])[None].clone()
    place = torch.full((1,), prefix, device=device)

    def step() -> None:
        token.copy_(forward(token, place)[None])
        place.add_(1)

    def reset() -> None:
        place.fill_(prefix)
        for layer in cache.layers:
            layer.cumulative_length.fill_(prefix)

    return step, reset


def _captured(step: Callable[[], Any], setup: Setup) -> Callable[[], Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    setup.sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
