"""Compile the Triton kernels that the rows will run, on all processors, before the first row."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from benchmarks.speed_setup import Setup
from wamdiff2_cli.engine_build import architecture
from wamdiff2_core.decode.engine.kernel_sets import triton_sizes, why_not_triton
from wamdiff2_core.kernel_choice import text_model


def compile_ahead(setup: Setup) -> int:
    """How many forms of passes were compiled; 0 where Triton's kernels will not run."""
    arch = architecture()
    if arch is None or setup.kernels.startswith("torch") or why_not_triton(setup.device, setup.dtype):
        return 0
    from wamdiff2_core.decode.engine.triton_ahead import compile_all

    config = setup.config
    widths = sorted({width for size in config.block_sizes for width in (size, 2 * size)})
    steps = [(rows, width) for rows in config.rows for width in widths]
    shapes = (*steps, (1, 1024 + 32), (3, 96 + 32))  # of longer prompts the kernels are the same
    random = triton_sizes(setup.loaded.config.text_config, config)
    trained = triton_sizes(text_model(setup.checkpoint).config, setup.trained_config)
    every = ((random, False), (random, True), (trained, False))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), context) as pool:
        waiting = [
            pool.submit(compile_all, config.page_size, sizes, [form], fp8=fp8, arch=arch)
            for sizes, fp8 in every
            for form in shapes
        ]
        for one in waiting:
            one.result()
    return len(waiting)
