"""Picture variety made on the accelerator: every frame looks different each time it is drawn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wamdiff2_core.model.images import ImageFormat


def jitter(images: Tensor, strength: float, generator: torch.Generator | None = None, shift_px: int = 2) -> Tensor:
    """(M, H, W, 3) uint8 -> (M, 3, H, W) float in 0..1, with random brightness, contrast, colour, noise, blur and a
    small shift.

    strength 0 leaves the pictures as they are. One draw per picture; the shift is too small to move a box noticeably.
    """
    pixels = images.permute(0, 3, 1, 2).float() / 255.0
    if strength <= 0.0:
        return pixels
    count, device = pixels.shape[0], pixels.device

    def draw(*shape: int) -> Tensor:
        return torch.rand(count, *shape, device=device, generator=generator) * 2.0 - 1.0

    gamma = torch.exp(0.25 * strength * draw(1, 1, 1))
    pixels = pixels.clamp(min=1e-4) ** gamma
    pixels = pixels * (1.0 + 0.25 * strength * draw(1, 1, 1)) * (1.0 + 0.08 * strength * draw(3, 1, 1))
    mean = pixels.mean((1, 2, 3), keepdim=True)
    pixels = mean + (pixels - mean) * (1.0 + 0.25 * strength * draw(1, 1, 1))
    grey = pixels.mean(1, keepdim=True)
    pixels = grey + (pixels - grey) * (1.0 + 0.4 * strength * draw(1, 1, 1))
    blurred = F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    pixels = torch.lerp(pixels, blurred, (draw(1, 1, 1) * strength).clamp(0.0, 1.0))
    noise = torch.randn(pixels.shape, device=device, generator=generator)
    pixels = pixels + noise * 0.03 * strength * draw(1, 1, 1).clamp(min=0.0)
    return _shift(pixels.clamp(0.0, 1.0), shift_px, generator)


def _shift(pixels: Tensor, most: int, generator: torch.Generator | None) -> Tensor:
    """Move each picture by up to `most` whole pixels, edges repeated."""
    if most < 1:
        return pixels
    count, _, height, width = pixels.shape
    move = torch.randint(-most, most + 1, (2, count), device=pixels.device, generator=generator)
    rows = (torch.arange(height, device=pixels.device) + move[0, :, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=pixels.device) + move[1, :, None]).clamp(0, width - 1)
    pixels = pixels.gather(2, rows[:, None, :, None].expand(-1, 3, -1, width))
    return pixels.gather(3, columns[:, None, None, :].expand(-1, 3, height, -1))


def to_patches(pixels: Tensor, form: ImageFormat) -> Tensor:
    """(M, 3, H, W) in 0..1 -> (M, patches, 3 * T * P * P) normalised, in Qwen's order (as model/images.py does
    from uint8).
    """
    count, _, height, width = pixels.shape
    p, m, t = form.patch_size, form.merge_size, form.temporal_patch_size
    planes = [
        (pixels[:, c] - form.mean[c]) / form.std[c] for c in range(3)
    ]  # numbers, not tensors: no copy from the host
    x = torch.stack(planes, 1).view(count, 3, height // form.unit, m, p, width // form.unit, m, p)
    x = x.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6)
    return x.expand(-1, -1, -1, -1, -1, -1, t, -1, -1).reshape(count, (height // p) * (width // p), 3 * t * p * p)
