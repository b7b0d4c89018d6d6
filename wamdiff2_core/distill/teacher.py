"""A frozen teacher: reads the student's corrupted sequence under its own block mask and gives hidden states and a head.

With a smaller block it knows more: the blocks of its own that lie before a token are shown to it clean.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wamdiff2_core.distill.batch import Conversations
from wamdiff2_core.distill.corruption import Corruption
from wamdiff2_core.distill.forward import Pass, Visual, hidden_states, taken
from wamdiff2_core.distill.layout import Layout, decoding_at, first_of_block
from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.model.checkpoint import LoadedModel, load_model


@dataclass(frozen=True)
class Teacher:
    """model: frozen and in eval mode, whatever the student does. block_size: 0 takes each row's own."""

    model: nn.Module
    layout: Layout
    how: Pass
    block_size: int = 0

    @property
    def head(self) -> Tensor:
        """(V, Ht) output matrix."""
        return self.model.lm_head.weight

    def blocks(self, block: Tensor) -> Tensor:
        """(R,) teacher's block sizes beside the student's; never larger than those: it shall know at least as much."""
        return block if not self.block_size else block.clamp(max=self.block_size)

    @torch.no_grad()
    def hidden(
        self, rows: Conversations, visual: Visual | None, live: Tensor, block: Tensor, noise: Corruption
    ) -> Tensor:
        """(R, K * C, Ht): outputs that predict each token of K draws, as the teacher's decoder would have them."""
        own = self.blocks(block)
        causal = self.block_size == 1 and self.layout.prediction == "next"  # every token follows from clean ones
        packed = rows.packed(live, own, None if causal else noise.noisy, self.layout)
        first = first_of_block(own, packed.clean_at.shape[1])
        if packed.noisy_at is None:
            copies = noise.noisy.shape[1] // packed.clean_at.shape[1]
            at = packed.clean_at.repeat(1, copies)  # the same for every draw
        else:
            at = decoding_at(packed, first, self.layout.prediction)
        return taken(hidden_states(self.model, packed, visual, self.how), at)


def load_teacher(
    folder: Path | str, student: LoadedModel, block_size: int, how: Pass, dtype: str, image_tokens: int = 0
) -> Teacher:
    """Load and freeze. CheckpointError unless both speak the same tokens and see the same images.

    image_tokens: see layout.Layout.
    """
    loaded = load_model(folder, device=str(student.device), dtype=dtype)
    check_pair(loaded, student)
    model = loaded.model.eval().requires_grad_(False)
    layout = Layout(loaded.prediction, loaded.context, loaded.config.image_token_id, image_tokens)
    return Teacher(model, layout, how, block_size)


def check_pair(teacher: LoadedModel, student: LoadedModel) -> None:
    """The same tokens mean the same for both, and an image has equally many."""
    same = {
        "vocab_size": lambda m: m.vocab_size,
        "end tokens": lambda m: m.eos_token_ids,
        "image token": lambda m: m.config.image_token_id,
        "image size rule": lambda m: (m.config.vision_config.patch_size, m.config.vision_config.spatial_merge_size),
    }
    for what, of in same.items():
        if of(teacher) != of(student):
            raise CheckpointError(f"teacher {teacher.folder}: {what} is {of(teacher)}, the student's is {of(student)}")
    if teacher.mask_token_id not in (None, student.mask_token_id):
        raise CheckpointError(
            f"teacher {teacher.folder}: mask token {teacher.mask_token_id}, the student's is {student.mask_token_id}"
        )
