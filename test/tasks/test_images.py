"""Image patches against transformers' own processor, and what is refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wamdiff2_core.errors import CheckpointError, DataError
from wamdiff2_core.model.images import ImageFormat, fit, fitting_size, patchify, preprocess

RNG = np.random.default_rng(0)


def picture(width: int, height: int) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def processor(form: ImageFormat):  # type: ignore[no-untyped-def]
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    given = form.preprocessor_config()
    given.pop("image_processor_type")
    return module.Qwen2VLImageProcessorPil(**given)


@pytest.mark.parametrize(
    "form", [ImageFormat(), ImageFormat(14, 2, 2, (0.48, 0.45, 0.4), (0.26, 0.25, 0.27), 3136, 100_000)]
)
def test_values_equal_transformers(form: ImageFormat) -> None:
    images = [picture(640, 384), picture(333, 191), picture(50, 40), picture(1600, 900)]
    pixels, grid = preprocess(images, None, form)
    theirs = processor(form)(images, return_tensors="pt")
    assert torch.equal(grid, theirs["image_grid_thw"])
    assert (pixels - theirs["pixel_values"]).abs().max() < 1e-5


def test_set_sizes_average_areas() -> None:
    form = ImageFormat()
    image = picture(640, 384)
    pixels, grid = preprocess([image, picture(320, 192)], [(320, 192), (160, 96)], form)
    assert grid.tolist() == [[1, 12, 20], [1, 6, 10]] and pixels.shape == (240 + 60, 1536)
    mean = image.reshape(192, 2, 320, 2, 3).mean((1, 3))
    expected = patchify(torch.from_numpy(np.round(mean).astype(np.uint8))[None], form)[0]
    assert (pixels[:240] - expected).abs().max() <= 1.0 / 127.5 + 1e-6  # half values may round either way
    assert form.tokens((320, 192)) == 60


@pytest.mark.parametrize("size", [(320, 192), (64, 32), (28, 56), (7, 3)])
def test_half_the_size_is_pillows_box_to_the_bit(size: tuple[int, int]) -> None:
    form = ImageFormat(1, 1, 1)
    smooth = np.linspace(0, 255, size[0] * 2)[None, :, None] + np.arange(size[1] * 2)[:, None, None] + np.arange(3)
    for image in (
        picture(size[0] * 2, size[1] * 2),
        smooth.astype(np.uint8),
        picture(size[0] * 4, size[1] * 2)[:, ::2],
    ):
        expected = np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BOX))
        assert np.array_equal(fit([image], [size], form)[0], expected)


def test_an_image_of_the_right_size_is_untouched_and_views_are_fine() -> None:
    big = picture(640, 192)
    view = big[:, ::2]
    view.flags.writeable = False
    assert torch.equal(preprocess([view], [(320, 192)])[0], preprocess([view.copy()], [(320, 192)])[0])


@pytest.mark.parametrize("sizes", [None, [(320, 192), (160, 96), (320, 192)]])
@pytest.mark.parametrize("form", [ImageFormat(), ImageFormat(mean=(0.48, 0.45, 0.4), std=(0.26, 0.25, 0.27))])
def test_one_by_one_or_several_at_a_time_it_is_fit_and_patchify(form: ImageFormat, sizes: list | None) -> None:
    images = [picture(640, 384), picture(320, 192), picture(333, 191)]
    expected = [patchify(torch.from_numpy(image)[None], form)[0] for image in fit(images, sizes, form)]
    with ThreadPoolExecutor(2) as pool:
        for each in (map, pool.map):
            assert torch.equal(preprocess(images, sizes, form, each)[0], torch.cat(expected))


def test_no_images() -> None:
    pixels, grid = preprocess([])
    assert pixels.shape == (0, 1536) and grid.shape == (0, 3)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 3)),
        np.zeros((4, 4, 4), np.uint8),
        None,
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_image(bad: object) -> None:
    with pytest.raises(DataError, match="expected"):
        preprocess([bad])  # type: ignore[list-item]


def test_sizes_must_fit() -> None:
    with pytest.raises(DataError, match="multiples of 32"):
        preprocess([picture(64, 64)], [(50, 32)])
    with pytest.raises(DataError, match="a size for each"):
        preprocess([picture(64, 64)], [])


def test_pixel_limits() -> None:
    form = ImageFormat()
    for width, height in ((10, 10), (4000, 3000), (1920, 1080), (31, 1000)):
        wide, high = fitting_size(width, height, form)
        assert wide % 32 == high % 32 == 0
        assert wide * high <= form.max_pixels
        assert wide * high >= form.min_pixels


def test_reading_the_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ImageFormat.from_folder(tmp_path)
    vision = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": vision}))
    assert ImageFormat.from_folder(tmp_path) == ImageFormat()
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1]})
    )
    assert ImageFormat.from_folder(tmp_path).mean == (0.1, 0.2, 0.3)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": 3}))
    with pytest.raises(CheckpointError, match="three numbers"):
        ImageFormat.from_folder(tmp_path)
