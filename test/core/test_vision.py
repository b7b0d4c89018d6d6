"""Our batched image encoding against transformers' own forward pass, values and gradients; positions too."""

from __future__ import annotations

import pytest
import torch
from tiny_models import IMAGE, config_dict, prompt, random_model

from wamdiff2_core.errors import DataError
from wamdiff2_core.model.tokens import deal_images, grids_of, mrope_positions
from wamdiff2_core.model.vision import encode_images

GRIDS = [
    [(1, 4, 6)],
    [(1, 4, 6), (1, 4, 4), (1, 4, 6)],
    [(1, 2, 2), (1, 2, 8), (1, 8, 2), (1, 2, 2), (1, 2, 8)],
    [(2, 4, 4), (1, 4, 4)],
]


@pytest.fixture(scope="module")
def model():
    return random_model(config_dict())


def pixels_of(grids) -> torch.Tensor:
    return torch.randn(sum(t * h * w for t, h, w in grids), 96, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("grids", GRIDS)
def test_equals_transformers(model, grids) -> None:
    visual, pixels = model.model.visual, pixels_of(grids)
    with torch.inference_mode():
        want = visual(pixels, grid_thw=torch.tensor(grids), return_dict=True)
        got = encode_images(visual, pixels, torch.tensor(grids))
    assert torch.allclose(got.embeds, want.pooler_output, atol=1e-4)
    assert len(got.deepstack) == len(want.deepstack_features) == 2
    for mine, theirs in zip(got.deepstack, want.deepstack_features, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_gradients_equal_transformers(model) -> None:
    """Also after the tables were first made inside inference mode."""
    visual, grids = model.model.visual, GRIDS[1]
    pixels = pixels_of(grids)
    with torch.inference_mode():
        encode_images(visual, pixels, grids)
    gradients = []
    for ours in (True, False):
        visual.zero_grad()
        if ours:
            features = encode_images(visual, pixels, grids)
            total = features.embeds.pow(2).sum() + features.deepstack.pow(2).sum()
        else:
            out = visual(pixels, grid_thw=torch.tensor(grids), return_dict=True)
            total = out.pooler_output.pow(2).sum() + sum(one.pow(2).sum() for one in out.deepstack_features)
        total.backward()
        gradients.append({name: p.grad.clone() for name, p in visual.named_parameters()})
    visual.zero_grad()
    for name, mine in gradients[0].items():
        theirs = gradients[1][name]
        assert (mine - theirs).abs().max() <= 1e-3 * theirs.abs().max() + 1e-4, name


def test_bfloat16(model) -> None:
    visual = random_model(config_dict()).model.visual.to(torch.bfloat16)
    pixels = pixels_of(GRIDS[1])
    got = encode_images(visual, pixels, GRIDS[1]).embeds
    want = encode_images(model.model.visual, pixels, GRIDS[1]).embeds
    assert got.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(got.float(), want, dim=-1).min() > 0.98


def test_wrong_patches(model) -> None:
    with pytest.raises(DataError, match="expected 24 patches"):
        encode_images(model.model.visual, torch.zeros(20, 96), [(1, 4, 6)])
    with pytest.raises(DataError, match="multiples"):
        encode_images(model.model.visual, torch.zeros(15, 96), [(1, 3, 5)])


@pytest.mark.parametrize("images", [0, 1, 2, 3])
def test_positions_equal_transformers(model, images: int) -> None:
    ids, _, grids = prompt(9, images=images)
    got, free = mrope_positions(ids, grids_of(grids), IMAGE, 2)
    want, delta = model.model.get_rope_index(ids[None], (ids[None] == IMAGE).int(), image_grid_thw=grids)
    assert torch.equal(got, want[:, 0])
    assert free == len(ids) + int(delta)
    shifted, _ = mrope_positions(ids, grids_of(grids), IMAGE, 2, start=5)
    assert torch.equal(shifted, got + 5)


def test_images_are_dealt_by_their_tokens() -> None:
    grids = [(1, 4, 6), (1, 4, 4), (1, 2, 2)]
    rows = [torch.tensor([1]), torch.tensor([IMAGE] * 10), torch.tensor([1, IMAGE, 1])]
    assert deal_images(rows, grids, IMAGE, 2) == [[], grids[:2], grids[2:]]
    with pytest.raises(DataError, match="left over"):
        deal_images([torch.tensor([IMAGE] * 5)], grids, IMAGE, 2)
    with pytest.raises(DataError, match="have no image tokens"):
        deal_images(rows[:2], grids, IMAGE, 2)
