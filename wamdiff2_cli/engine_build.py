"""`wamdiff2 doctor --build`: compile the engine's kernels now, so that the first frame does not wait for them."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wamdiff2_core.errors import ConfigError, Wamdiff2Error

if TYPE_CHECKING:
    from wamdiff2_core.decode.engine.config import EngineConfig
    from wamdiff2_core.decode.pick import TextModel

Say = Callable[[str], None]
Done = tuple[str, float]
Form = tuple[int, int]  # rows, tokens a row


def build(folder: Path, arch: int | None, say: Say) -> list[str]:
    """Compile all that an engine under a driver may run with the checkpoint in `folder`, candidates included.

    Returns a line for each thing that could not be compiled.

    arch: compile Triton's kernels for this architecture (90: Hopper) instead of the GPU's, which need not be here then.
    """
    from wamdiff2_core.kernel_choice import text_model

    model = text_model(folder)
    problems = []
    for name, steps in (
        ("triton", partial(_triton, folder, model, arch)),
        ("flashinfer", partial(_flashinfer, model.config, arch, say)),
    ):
        began, count = time.perf_counter(), 0
        try:
            for what, seconds in steps():
                say(f"{name}: {what}: {seconds:.1f} s")
                count += 1
        except Exception as error:  # noqa: BLE001 - a library's own error must not hide what the other one has to say
            kind = "" if isinstance(error, Wamdiff2Error) else f"{type(error).__name__}: "
            first = next(iter(str(error).strip().splitlines()), "no reason given")
            problems.append(f"{name}: {kind}{first.removeprefix(name + ': ')}")
        else:
            if count:
                say(f"{name}: done after {time.perf_counter() - began:.1f} s")
    return problems


def architecture() -> int | None:
    """Of this machine's GPU, like 90; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _triton(folder: Path, model: TextModel, arch: int | None) -> Iterator[Done]:
    arch = arch or architecture()
    if arch is None:
        raise ConfigError("no GPU here: name the one to compile for, --arch 90 for an H100 or H200")
    if importlib.util.find_spec("triton") is None:
        raise ConfigError("the package triton is not installed: it comes with PyTorch's CUDA builds for Linux")
    from wamdiff2_core.decode.engine.kernel_sets import triton_sizes
    from wamdiff2_core.decode.engine.triton_table import BUCKETS
    from wamdiff2_core.decode.pick import why_not

    problem = why_not("triton", model)
    if problem:
        raise ConfigError(problem)
    config = model.sizes
    sizes = triton_sizes(model.config, config)
    spawn = multiprocessing.get_context("spawn")  # each process tells Triton of a device that is not there
    pool = ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), spawn)
    try:
        waiting = {
            pool.submit(compile_passes, config.page_size, sizes, part, fp8, arch): (name, fp8)
            for fp8 in (False, True)
            for name, part in parts(config, BUCKETS).items()
        }
        beside = pool.submit(compile_beside, folder, config, arch)
        for done in as_completed(waiting):
            name, fp8 = waiting[done]
            count, seconds = done.result()
            yield f"{'8-bit' if fp8 else 'bfloat16'}, passes of {name}, {count} kernels for sm_{arch}", seconds
        count, seconds = beside.result()
        yield f"prompts, images and moves, {count} kernels for sm_{arch}", seconds
    finally:
        pool.shutdown(cancel_futures=True)


def forms(config: EngineConfig) -> list[Form]:
    """(rows, tokens a row) of every pass of every lane: narrow and wide, prefixes, and first passes behind them."""
    steps = {width for size in config.block_sizes for width in (size, 2 * size)}
    prompts = {bucket for bucket in config.buckets if bucket <= config.max_length} | {min(config.buckets)}
    firsts = {prompt + size for prompt in prompts for size in (0, *config.block_sizes)}
    return [(rows, width) for rows in config.rows for width in sorted(steps | firsts)]


def parts(config: EngineConfig, buckets: Sequence[int]) -> dict[str, list[Form]]:
    """The forms by the bucket of tokens that kernels are cut for: those of one part share most of their kernels."""
    found: dict[str, list[Form]] = {}
    for rows, width in forms(config):
        bucket = next((size for size in buckets if rows * width <= size), None)
        name = f"more than {buckets[-1]} tokens" if bucket is None else f"up to {bucket} tokens"
        found.setdefault(name, []).append((rows, width))
    return found


def compile_passes(page_size: int, sizes: Any, part: list[Form], fp8: bool, arch: int) -> tuple[int, float]:
    """(kernels, seconds) of these forms of passes, each kernel once; in a process of its own."""
    from wamdiff2_core.decode.engine.triton_ahead import compile_all

    began = time.perf_counter()
    try:
        built = compile_all(page_size, sizes, part, fp8=fp8, arch=arch)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return len(built), time.perf_counter() - began


def compile_beside(folder: Path, config: EngineConfig, arch: int) -> tuple[int, float]:
    """(kernels, seconds) of what passes run beside their layers; in a process of its own. config: of the engine."""
    import torch

    from wamdiff2_core.decode.blocks import Vocabulary
    from wamdiff2_core.decode.engine.triton_ahead import AbsentDevice
    from wamdiff2_core.decode.engine.triton_beside import compile_moves, compile_prompt
    from wamdiff2_core.decode.engine.triton_table import dependent
    from wamdiff2_core.model.checkpoint import read_facts

    began, device = time.perf_counter(), AbsentDevice(arch).install()
    facts = read_facts(folder)
    text = facts.config.text_config
    compile_prompt(text.intermediate_size, facts.config.vision_config)
    vocabulary = Vocabulary(
        facts.mask_token_id, torch.tensor(facts.eos_token_ids), text.vocab_size, facts.kind == "wam_diff2"
    )
    for rows in config.rows:
        for size in config.block_sizes if facts.mask_token_id is not None else (1,):
            following, by_block = facts.prediction == "next", facts.context == "block_causal"
            compile_moves(config, rows, size, vocabulary, following, by_block, text, dependent(arch))
    return len(device.built), time.perf_counter() - began


def _flashinfer(text: Any, arch: int | None, say: Say) -> Iterator[Done]:
    from wamdiff2_core.decode.engine.flashinfer_ops import HEAD_DIMS, build, here

    if arch is not None or not here()[0].ok:
        say("flashinfer: left out, it " + ("compiles on its GPU only" if arch else "is not installed"))
        return
    if text.head_dim not in HEAD_DIMS:
        raise ConfigError(f"expected a head size of {HEAD_DIMS}, got {text.head_dim}")
    yield from build((text.head_dim,))
