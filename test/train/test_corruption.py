"""Noise: stratified per block and permuted, clamped afterwards; scaffold and dead positions are never masked."""

import pytest
import torch

from wamdiff2_core.distill.corruption import block_index, block_noise, complement, corrupt, maskable
from wamdiff2_core.errors import ConfigError

MASK = 99


def rows(count: int, positions: int = 32, block: int = 8):
    torch.manual_seed(0)
    answer = torch.randint(0, 50, (count, positions))
    given = torch.rand(count, positions) < 0.3
    return answer, torch.full((count,), positions), given, torch.full((count,), block)


def test_noise_is_stratified_over_blocks_permuted_and_clamped_last():
    t = block_noise(torch.full((4000,), 32), torch.full((4000,), 8), 32, t_min=0.02)
    each = t[:, ::8]
    assert torch.equal(t, each.repeat_interleave(8, 1))
    strata = (each.sort(1).values * 4).floor().clamp(max=3)
    assert torch.equal(strata, torch.arange(4.0).expand(4000, -1))  # one block in every quarter
    assert (each.argmax(1).bincount(minlength=4) > 800).all()  # which one is random
    assert each.min() >= 0.02 and each.max() <= 1.0
    with pytest.raises(ConfigError):
        block_noise(torch.tensor([8]), torch.tensor([8]), 8, t_min=0.0)


def test_masks_keep_to_free_live_positions_and_every_block_has_one():
    answer, length, given, block = rows(500)
    length[::2] = 16
    got = corrupt(answer, length, given, block, MASK, t_min=0.02)
    free = maskable(length, given)
    assert not (got.masked & ~free).any()
    assert torch.equal(got.noisy, torch.where(got.masked, MASK, answer))
    for number in range(4):
        inside = block_index(block, 32) == number
        has_free = (free & inside).any(1)
        assert ((got.masked & inside).any(1) == has_free).all()


def test_share_of_masks_follows_t():
    answer, length, _, block = rows(4000)
    got = corrupt(answer, length, torch.zeros_like(answer, dtype=torch.bool), block, MASK)
    for low in (0.25, 0.5, 0.75):
        near = (got.t >= low) & (got.t < low + 0.1)
        assert abs(got.masked[near].float().mean().item() - (low + 0.05)) < 0.02


def test_complement_masks_what_was_shown():
    answer, length, given, block = rows(50)
    first = corrupt(answer, length, given, block, MASK)
    second = complement(answer, first, length, given, MASK)
    assert torch.equal(first.masked ^ second.masked, maskable(length, given))


def test_mixed_block_sizes_and_generator():
    answer, length, given, _ = rows(6)
    block = torch.tensor([1, 4, 8, 16, 32, 32])
    made = [
        corrupt(answer, length, given, block, MASK, generator=torch.Generator().manual_seed(5)).masked for _ in range(2)
    ]
    assert torch.equal(*made)
    assert torch.equal(made[0][0], ~given[0])  # blocks of one token: each is masked


def test_a_share_of_rows_is_masked_as_the_ordered_rule_meets_them():
    """Of each block all ranks from some rank on are masked and nothing before it; every rank begins equally often."""
    rows, positions = 3000, 12
    ranks = torch.tensor([0, 1, 2, 2] * 3).expand(rows, -1)
    answer, length = torch.full((rows, positions), 5), torch.full((rows,), positions)
    given = torch.zeros(rows, positions, dtype=torch.bool)
    given[:, 3] = True
    block = torch.full((rows,), 4)
    generator = torch.Generator().manual_seed(0)
    noise = corrupt(answer, length, given, block, 9, generator=generator, ranks=ranks, ordered_share=1.0)
    assert not noise.masked[:, 3].any() and torch.equal(noise.noisy == 9, noise.masked)
    patterns = {tuple(row) for row in noise.masked[:, 4:8].int().tolist()}
    assert patterns == {(1, 1, 1, 1), (0, 1, 1, 1), (0, 0, 1, 1)}
    assert {tuple(row) for row in noise.masked[:, :4].int().tolist()} == {(1, 1, 1, 0), (0, 1, 1, 0), (0, 0, 1, 0)}
    first = noise.masked[:, 4].float().mean().item()
    assert abs(first - 1 / 3) < 0.03
    assert torch.equal(noise.t[:, 4][noise.masked[:, 4]].unique(), torch.tensor([1.0]))
    unranked = torch.full_like(ranks, -1)
    plain = corrupt(answer, length, given, block, 9, generator=torch.Generator().manual_seed(3))
    same = corrupt(answer, length, given, block, 9, generator=torch.Generator().manual_seed(3), ranks=unranked,
                   ordered_share=0.0)  # fmt: skip
    assert torch.equal(plain.masked, same.masked)
    mixed = corrupt(answer, length, given, block, 9, generator=generator, ranks=ranks, ordered_share=0.5)
    share = torch.tensor([tuple(row) in patterns for row in mixed.masked[:, 4:8].int().tolist()]).float().mean()
    assert 0.5 < share < 0.9
