"""Attention of packed streams at real size: a dense mask through SDPA against FlexAttention, time and memory.

python -m benchmarks.distill_attention --out attention.json

One layer's attention of the given shape over full streams of made-up samples, as a training step calls it: forward,
and forward with backward. Medians; memory is what the pass takes beyond its inputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.real_data import DataSize, batches
from benchmarks.real_report import attention_table
from benchmarks.real_shapes import SHAPES, TEXT, Ids
from wamdiff2_core.distill.attention import Mask, attend, prepared
from wamdiff2_core.distill.layout import Layout

KINDS = ("dense", "flex")
GB = 1e9


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shape", default="2b", choices=SHAPES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", nargs="+", default=["960x640", "1920x1056"], help="WIDTHxHEIGHT of each table")
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=20)
    return parser.parse_args(given)


class Case:
    """Query, key and value (1, heads, L, D) of one layer, and the mask of a packed stream in one form."""

    def __init__(self, options: argparse.Namespace, image: tuple[int, int], kind: str) -> None:
        self.device, text = torch.device(options.device), TEXT[options.shape]
        size = DataSize(image, options.prompt_tokens, options.max_tokens)
        self.samples = size.samples_per_stream
        ids = Ids.of(text["vocab_size"])
        self._batch = batches("stream", size, ids, 1, 1, kind, self.device)[0]
        self._layout = Layout("next", "causal", ids.image, size.image_tokens)
        self._cast = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        heads = (text["heads"], text["kv_heads"], text["kv_heads"])
        self.inputs = [
            torch.randn(
                1, count, options.max_tokens, text["head_dim"], device=self.device, dtype=self._cast, requires_grad=True
            )
            for count in heads
        ]
        self._scale = text["head_dim"] ** -0.5
        self.mask = self.make_mask()

    def make_mask(self) -> Mask:
        """As a step makes it, once for all layers, with blocks of 32 and all answers masked."""
        part = self._batch.parts["answers"]
        block = torch.full_like(part.answer_length, 32)
        packed = part.packed(part.live_length(block), block, part.answer, self._layout)
        return prepared(packed.mask, self._cast)

    def forward(self) -> Tensor:
        query, key, value = self.inputs
        return attend(query, key, value, self.mask, self._scale)

    def both(self) -> None:
        """Forward and backward."""
        out = self.forward()
        out.backward(torch.ones_like(out))
        for tensor in self.inputs:
            tensor.grad = None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def median_ms(self, call: Callable[[], object], repeats: int) -> float:
        """After two calls that do not count. Whole calls on an idle device, host time included."""
        spent = []
        for _ in range(repeats + 2):
            self.wait()
            begin = time.perf_counter()
            call()
            self.wait()
            spent.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(spent[2:])

    def memory_gb(self, call: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        self.wait()
        return (torch.cuda.max_memory_allocated() - before) / GB


def measure(options: argparse.Namespace, image: tuple[int, int]) -> dict:
    """Figures of both forms, and how far their outputs differ."""
    found: dict = {"image": list(image), "max_tokens": options.max_tokens}
    outputs = []
    for kind in KINDS:
        torch.manual_seed(0)
        case = Case(options, image, kind)
        outputs.append(case.forward().detach().float())
        found["samples"] = case.samples
        found[kind] = {
            "mask_ms": case.median_ms(case.make_mask, options.repeats),
            "forward_ms": case.median_ms(case.forward, options.repeats),
            "both_ms": case.median_ms(case.both, options.repeats),
            "mask_gb": case.memory_gb(case.make_mask),
            "both_gb": case.memory_gb(case.both),
        }
    found["largest_difference"] = float((outputs[0] - outputs[1]).abs().max())
    return found


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    if options.device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)  # as in training: no plan for every shape of a mask
    results = []
    for image in options.images:
        width, _, height = image.partition("x")
        results.append(measure(options, (int(width), int(height))))
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    print(f"{options.shape}, {options.max_tokens} tokens, {device}, torch {torch.__version__}\n")
    print(attention_table(results))
    print("largest differences of outputs:", ", ".join(f"{found['largest_difference']:.4f}" for found in results))
    if options.out is not None:
        figures = {"device": device, "torch": torch.__version__, "shape": options.shape, "results": results}
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
