"""Rows of token ids and their positions: which image tokens belong to which image, and where (M-RoPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from wamdiff2_core.errors import DataError

Grid = tuple[int, int, int]
InputIds: TypeAlias = Tensor | Sequence[Tensor] | Sequence[Sequence[int]] | Sequence[int]


def as_rows(input_ids: InputIds) -> tuple[list[Tensor], bool]:
    """Rows as 1-D int64 tensors, and whether the caller gave a single row (1-D, or 2-D with one row)."""
    if isinstance(input_ids, Tensor):
        rows = [input_ids] if input_ids.dim() == 1 else list(input_ids)
    elif len(input_ids) and isinstance(input_ids[0], int):
        rows = [torch.tensor(input_ids)]
    else:
        rows = [torch.as_tensor(row) for row in input_ids]
    if not rows or any(row.dim() != 1 or row.numel() == 0 for row in rows):
        raise DataError(f"input_ids: expected rows of at least one token, got shapes {[tuple(r.shape) for r in rows]}")
    return [row.to(torch.int64) for row in rows], len(rows) == 1


def image_tokens(grid: Grid, merge: int) -> int:
    """Text-model tokens of one image: patches of the (t, h, w) grid after merging merge x merge patches."""
    t, h, w = grid
    if min(grid) < 1:
        raise DataError(f"image grid {grid}: expected sizes of at least 1")
    if h % merge or w % merge:
        raise DataError(f"image grid {grid}: height and width must be multiples of the merge size {merge}")
    return t * h * w // (merge * merge)


def grids_of(image_grid_thw: Tensor | None) -> list[Grid]:
    """The rows of image_grid_thw (N, 3) as tuples."""
    if image_grid_thw is None:
        return []
    if image_grid_thw.dim() != 2 or image_grid_thw.shape[1] != 3:
        raise DataError(f"image_grid_thw: expected shape (images, 3), got {tuple(image_grid_thw.shape)}")
    return [(int(t), int(h), int(w)) for t, h, w in image_grid_thw.tolist()]


def deal_images(rows: Sequence[Tensor], grids: Sequence[Grid], image_token_id: int, merge: int) -> list[list[Grid]]:
    """Give each row its images, in order, by the number of image tokens it holds."""
    left = list(grids)
    dealt: list[list[Grid]] = []
    for number, row in enumerate(rows):
        wanted = int((row == image_token_id).sum())
        mine: list[Grid] = []
        while wanted > 0 and left:
            wanted -= image_tokens(left[0], merge)
            mine.append(left.pop(0))
        if wanted:
            raise DataError(f"row {number}: image tokens and images do not match ({wanted:+d} tokens left over)")
        dealt.append(mine)
    if left:
        raise DataError(f"{len(grids)} images given, {len(left)} of them have no image tokens in the prompt")
    return dealt


def mrope_positions(
    row: Tensor, grids: Sequence[Grid], image_token_id: int, merge: int, start: int = 0
) -> tuple[Tensor, int]:
    """(time, height, width) positions (3, N) of a row that begins at `start`, and the next free position.

    Text advances all three together; an image spans its merged grid and then text goes on after its longer side.
    """
    is_image = (row == image_token_id).tolist()
    pieces: list[Tensor] = []
    index, position = 0, start
    images = iter(grids)
    while index < len(is_image):
        if is_image[index]:
            grid = next(images)
            count = image_tokens(grid, merge)
            if not all(is_image[index : index + count]):
                raise DataError(f"image grid {grid}: expected its {count} image tokens side by side")
            t, h, w = grid
            size = (t, h // merge, w // merge)
            axes = torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")
            pieces.append(torch.stack(axes).reshape(3, -1) + position)
            index += count
            position += max(size[1], size[2])
        else:
            end = index
            while end < len(is_image) and not is_image[end]:
                end += 1
            pieces.append(torch.arange(position, position + end - index).expand(3, -1))
            position += end - index
            index = end
    return torch.cat(pieces, dim=1).to(row.device), position
