"""The rows of engine_speed that run our engine. Each is a function of a Setup and gives plain values."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from benchmarks.speed_setup import PLAN, Setup, fixed, median
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.decoder import BlockDecoder
from wamdiff2_core.decode.engine import flashinfer_ops
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.errors import DataError, Wamdiff2Error


def copy_bandwidth(setup: Setup) -> dict[str, Any]:
    """TB/s of a large copy, read and written bytes."""
    source = torch.empty(2**31 if setup.cuda else 2**24, dtype=torch.uint8, device=setup.device)
    target = torch.empty_like(source)
    ms = median(setup.repeat(lambda: setup.wall_ms(lambda: [target.copy_(source) for _ in range(4)]), 1.0, 5, 30)) / 4
    return {"tb_s": 2 * source.numel() / ms / 1e9, "bytes": source.numel()}


def speed(setup: Setup, decoder: BlockDecoder, prefix: int, config: DecodingConfig, seconds: float) -> dict[str, Any]:
    """Tokens a second behind the first pass, which belongs to the prompt: so its share of the tokens does not count.

    All commits but the last block's, which no answer needs, are in it.
    """
    ids = setup.ids(prefix)
    outs = setup.repeat(lambda: decoder.generate(ids, config=config), seconds, 3, 40)
    passes, tokens = outs[0].forwards, len(outs[0].tokens)
    if tokens != config.max_new_tokens:
        raise DataError(f"expected answers of {config.max_new_tokens} tokens, got {tokens} ({outs[0].status})")
    rates = [tokens * (passes - 1) / passes / out.decode_ms * 1e3 for out in outs]
    return {
        "tps": median(rates), "tps_with_prompt": median([tokens / (o.prefill_ms + o.decode_ms) * 1e3 for o in outs]),
        "tokens": tokens, "forwards": passes, "tokens_per_forward": tokens / passes,
        "decode_ms": median([out.decode_ms for out in outs]), "prefill_ms": median([out.prefill_ms for out in outs]),
        "runs": len(outs),
    }  # fmt: skip


def engine_ar(setup: Setup) -> dict[str, Any]:
    each = setup.seconds / len(setup.sizes.prefixes)
    config = fixed(1, 1, setup.sizes.tokens)
    return {"prefixes": {str(n): speed(setup, setup.engine, n, config, each) for n in setup.sizes.prefixes}}


def blocks(setup: Setup) -> dict[str, Any]:
    """B = 4 to 32 at 8 steps a block (B = 4: its 4)."""
    found: dict[str, Any] = {}
    each = setup.seconds / len(setup.sizes.prefixes) / 4
    for size in (32, 16, 8, 4):
        config = fixed(size, 8, setup.sizes.tokens)
        found[str(size)] = {str(n): speed(setup, setup.engine, n, config, each) for n in setup.sizes.prefixes}
    return {"block_sizes": found}


def engine_step(setup: Setup) -> dict[str, Any]:
    return {"passes": _passes(setup, setup.engine, 0)}


def engine_step_fp8(setup: Setup) -> dict[str, Any]:
    return {"passes": _passes(setup, setup.engine_fp8, 1)}


def _passes(setup: Setup, decoder: EngineDecoder, weight_bytes: int) -> list[dict[str, Any]]:
    """Milliseconds of each kind of pass, replays behind one another; rows are alive and see the whole prefix."""
    kinds = [(1, "wide", 1), (8, "narrow", 8), (32, "narrow", 32), (32, "wide", 64)]
    found = []
    for prefix in setup.sizes.prefixes:
        for size, name, tokens in kinds:
            ms = _pass_ms(setup, decoder, prefix, size, name)
            nbytes, flops = setup.step_bytes(prefix, tokens, weight_bytes), setup.step_flops(prefix, tokens, size)
            found.append(
                {"pass": name, "block_size": size, "tokens": tokens, "prefix": prefix, "ms": ms}
                | {"bytes": nbytes, "flops": flops}
            )
        ms = _pass_ms(setup, decoder, prefix, 32, "first")
        counts = {"bytes": setup.step_bytes(0, prefix, weight_bytes), "flops": setup.step_flops(0, prefix, 32)}
        found.append({"pass": "first", "block_size": 32, "tokens": prefix, "prefix": 0, "ms": ms} | counts)
    return found


@torch.inference_mode()
def _pass_ms(setup: Setup, decoder: EngineDecoder, prefix: int, size: int, name: str) -> float:
    """Median of a replay. A call leaves its request in the lane: begun anew, its block stays open for `size` steps."""
    engine = decoder.engine
    decoder.generate(setup.ids(prefix), config=fixed(size, size, min(setup.sizes.tokens, 2 * size + 8)))
    lane, prompt = engine.lane(1, size), engine.prompt(1, prefix, False)
    key = engine.call_passes(lane, prompt, False)[name]
    most = 1 if name == "first" else max(size - 2, 8)

    def replays() -> None:
        for _ in range(most):
            engine.graphs.run(key)

    def some() -> float:
        lane.answers.begin()
        setup.sync()
        return setup.wall_ms(replays) / most

    try:
        with engine.turn():
            setup.sync()
            return median(setup.repeat(some, setup.seconds / 12, 3, 60))
    finally:
        lane.answers.idle()


def batch3(setup: Setup) -> dict[str, Any]:
    """Three answers of a plan's length behind a shared prefix: as rows of one batch, and one after another."""
    decoder, prefix_length = setup.engine, setup.sizes.prefixes[0]
    config = fixed(32, 8, min(PLAN, setup.sizes.tokens))
    prefix = decoder.prefill(setup.ids(prefix_length), block_size=32)
    rests = [setup.ids(setup.sizes.text // 2 + 4 * k, seed=k) for k in range(3)]
    together = partial(decoder.generate, rests, config=config, prefix=prefix)

    def apart() -> None:
        for rest in rests:
            decoder.generate(rest, config=config, prefix=prefix)

    one, three = (
        median(setup.repeat(partial(setup.wall_ms, call), setup.seconds / 2, 5, 60)) for call in (together, apart)
    )
    return {"prefix": prefix_length, "batch_ms": one, "one_after_another_ms": three, "speedup": three / one}


def ladder(setup: Setup) -> dict[str, Any]:
    """Our steps in the order of the paper's: transformers' layers with B = 32, kernels, graphs.

    Kernels are our own and, where it can be used, FlashInfer's: with both the engine does the same passes.
    """
    prefix, each = setup.sizes.prefixes[0], setup.seconds / 5
    config = fixed(32, 8, setup.sizes.tokens)
    plain = speed(setup, BlockDecoder(setup.loaded, "plain"), prefix, replace_tokens(config, 64), each)
    launched, captured = without_and_with_graphs(setup, setup.engine, prefix, config, each)
    return {
        "prefix": prefix, "eager_b32_tps": plain["tps"], "kernels_b32_tps": launched,
        "graphs_b32_tps": captured, "kernels": setup.engine.engine.kernels.name,
        **flashinfer_steps(setup, prefix, config, each),
        "paper": {"eager_b1": 44.5, "eager_b32": 124.8, "flashinfer_b32": None, "flashinfer_graphs_b32": 673.4},
    }  # fmt: skip


def flashinfer_steps(setup: Setup, prefix: int, config: DecodingConfig, seconds: float) -> dict[str, Any]:
    """The ladder's last two steps on FlashInfer's kernels; None, and why, where they cannot be taken.

    Kernels that are still to be compiled, which takes longer than a row may, are such a reason, too.
    """
    launched, captured = None, None
    problem = next((f"{one.name}: {one.found}; {one.do}" for one in flashinfer_ops.here() if not one.ok), None)
    if problem is None:
        try:
            decoder = EngineDecoder(setup.loaded, setup.config, "flashinfer")
            launched, captured = without_and_with_graphs(setup, decoder, prefix, config, seconds)
        except (Wamdiff2Error, RuntimeError) as error:  # what ails the library costs the other steps nothing
            problem = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return {
        "flashinfer_b32_tps": launched, "flashinfer_graphs_b32_tps": captured, "flashinfer_problem": problem,
    }  # fmt: skip


def without_and_with_graphs(
    setup: Setup, decoder: EngineDecoder, prefix: int, config: DecodingConfig, seconds: float
) -> tuple[float, float]:
    """Tokens a second of the same passes launched one kernel after another, and replayed."""
    captured = speed(setup, decoder, prefix, config, seconds)
    graphs = decoder.engine.graphs
    graphs.run = graphs.eager  # type: ignore[method-assign]
    try:
        launched = speed(setup, decoder, prefix, config, seconds)
    finally:
        del graphs.run
    return launched["tps"], captured["tps"]


def replace_tokens(config: DecodingConfig, tokens: int) -> DecodingConfig:
    """Shorter answers for what is slow."""
    return fixed(config.block_size, config.steps, min(tokens, config.max_new_tokens))


def prebuild(setup: Setup) -> dict[str, Any]:
    """Compile Triton's kernels on all processors, where they will run, and make the engine: weights get packed."""
    from benchmarks.speed_build import compile_ahead

    began = time.perf_counter()
    compiled = compile_ahead(setup)
    return {"kernels": setup.engine.engine.kernels.name, "passes": compiled, "seconds": time.perf_counter() - began}
