"""`wamdiff2 doctor --build`: compile the engine's kernels now, so that the first frame does not wait for them."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from wamdiff2_cli.engine_checks import text_config
from wamdiff2_core.errors import ConfigError, Wamdiff2Error

Say = Callable[[str], None]
Done = tuple[str, float]


def build(folder: Path, arch: int | None, say: Say) -> list[str]:
    """Compile all that can be for the checkpoint in `folder`. Returns a line for each thing that could not be.

    arch: compile Triton's kernels for this architecture (90: Hopper) instead of the GPU's, which need not be here then.
    """
    text = text_config(folder)
    problems = []
    for name, steps in (
        ("triton", partial(_triton, folder, text, arch)),
        ("flashinfer", partial(_flashinfer, text, arch, say)),
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


def _triton(folder: Path, text: Any, arch: int | None) -> Iterator[Done]:
    arch = arch or architecture()
    if arch is None:
        raise ConfigError("no GPU here: name the one to compile for, --arch 90 for an H100 or H200")
    if importlib.util.find_spec("triton") is None:
        raise ConfigError("the package triton is not installed: it comes with PyTorch's CUDA builds for Linux")
    from wamdiff2_core.decode.engine.config import EngineConfig
    from wamdiff2_core.decode.engine.kernel_sets import triton_sizes

    config = EngineConfig()
    sizes = triton_sizes(text, config)
    spawn = multiprocessing.get_context("spawn")  # each process tells Triton of a device that is not there
    pool = ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), spawn)
    try:
        waiting = {
            pool.submit(compile_pass, config.page_size, sizes, form, fp8, arch): (form, fp8)
            for fp8 in (False, True)
            for form in forms(config)
        }
        beside = pool.submit(compile_beside, folder, arch)
        for done in as_completed(waiting):
            (rows, width), fp8 = waiting[done]
            count, seconds = done.result()
            kind = "8-bit" if fp8 else "bfloat16"
            yield f"{kind}, {rows} x {width} tokens, {count} kernels for sm_{arch}", seconds
        count, seconds = beside.result()
        yield f"prompts, images and moves, {count} kernels for sm_{arch}", seconds
    finally:
        pool.shutdown(cancel_futures=True)


def forms(config: Any) -> list[tuple[int, int]]:
    """(rows, tokens a row) of the narrow and wide passes of every lane."""
    widths = sorted({width for size in config.block_sizes for width in (size, 2 * size)})
    return [(rows, width) for rows in config.rows for width in widths]


def compile_pass(page_size: int, sizes: Any, form: tuple[int, int], fp8: bool, arch: int) -> tuple[int, float]:
    """(kernels, seconds) of one form of pass; in a process of its own."""
    from wamdiff2_core.decode.engine.triton_ahead import compile_all

    began = time.perf_counter()
    try:
        built = compile_all(page_size, sizes, [form], fp8=fp8, arch=arch)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return len(built), time.perf_counter() - began


def compile_beside(folder: Path, arch: int) -> tuple[int, float]:
    """(kernels, seconds) of what passes run beside their layers; in a process of its own."""
    import torch

    from wamdiff2_core.decode.blocks import Vocabulary
    from wamdiff2_core.decode.engine.config import EngineConfig
    from wamdiff2_core.decode.engine.triton_ahead import AbsentDevice
    from wamdiff2_core.decode.engine.triton_beside import compile_moves, compile_prompt
    from wamdiff2_core.model.checkpoint import read_facts

    began, device, config = time.perf_counter(), AbsentDevice(arch).install(), EngineConfig()
    facts = read_facts(folder)
    text = facts.config.text_config
    compile_prompt(text.intermediate_size, facts.config.vision_config)
    vocabulary = Vocabulary(
        facts.mask_token_id, torch.tensor(facts.eos_token_ids), text.vocab_size, facts.kind == "wam_diff2"
    )
    for rows in config.rows:
        for size in config.block_sizes if facts.mask_token_id is not None else (1,):
            following, by_block = facts.prediction == "next", facts.context == "block_causal"
            compile_moves(config, rows, size, vocabulary, following, by_block)
    return len(device.built), time.perf_counter() - began


def _flashinfer(text: Any, arch: int | None, say: Say) -> Iterator[Done]:
    from wamdiff2_core.decode.engine.flashinfer_ops import HEAD_DIMS, build, here

    if arch is not None or not here()[0].ok:
        say("flashinfer: left out, it " + ("compiles on its GPU only" if arch else "is not installed"))
        return
    if text.head_dim not in HEAD_DIMS:
        raise ConfigError(f"expected a head size of {HEAD_DIMS}, got {text.head_dim}")
    yield from build((text.head_dim,))
