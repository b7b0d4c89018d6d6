"""Procedural textures: one array of square RGBA pictures, drawn with numpy from a seed.

Pictures repeat without seams and have a mean near 1, because vertex colours are multiplied by them. Alpha is what a
wall's lit
windows shine with at night, and on asphalt where puddles form.
"""

from __future__ import annotations

import numpy as np

SIZE = 256

PLAIN, ASPHALT, PAVING, GRASS, FOLIAGE, SHOPS, CLOUDS = range(7)
FACADES = (7, 8, 9, 10, 11, 12)
LAYERS = 13

# metres covered by one repeat (across, up)
SCALE_M = {
    PLAIN: (4.0, 4.0),
    ASPHALT: (9.0, 9.0),
    PAVING: (3.0, 3.0),
    GRASS: (11.0, 11.0),
    FOLIAGE: (3.0, 3.0),
    SHOPS: (12.0, 4.0),
}
FACADE_SCALE_M = (12.0, 12.8)  # four bays, four storeys


def noise(rng: np.random.Generator, cells: int, octaves: int = 4, fade: float = 0.55) -> np.ndarray:
    """(SIZE, SIZE) tileable value noise, mean 0, about -1..1; the first octave has `cells` cells a side."""
    total, weight, amplitude = np.zeros((SIZE, SIZE)), 0.0, 1.0
    for octave in range(octaves):
        n = min(cells * 2**octave, SIZE)
        grid = rng.uniform(-1.0, 1.0, (n, n))
        at = np.arange(SIZE) * n / SIZE
        low = at.astype(int)
        t = at - low
        t = t * t * (3.0 - 2.0 * t)
        high = (low + 1) % n
        rows = grid[low] * (1 - t)[:, None] + grid[high] * t[:, None]
        total += amplitude * (rows[:, low] * (1 - t) + rows[:, high] * t)
        weight += amplitude
        amplitude *= fade
    return total / weight


def texture_array(seed: int) -> np.ndarray:
    """(LAYERS, SIZE, SIZE, 4) uint8."""
    rng = np.random.default_rng(seed)
    layers = np.ones((LAYERS, SIZE, SIZE, 4))
    layers[..., 3] = 0.0
    layers[ASPHALT] = _asphalt(rng)
    layers[PAVING, ..., :3] = _paving(rng)[..., None]
    layers[GRASS, ..., :3] = _grass(rng)
    layers[FOLIAGE, ..., :3] = (0.82 + 0.45 * noise(rng, 16, 4, 0.9))[..., None]
    layers[SHOPS] = _shops(rng)
    layers[CLOUDS] = (0.5 + 0.9 * noise(rng, 4, 6, 0.55))[..., None]
    for layer in FACADES:
        layers[layer] = _facade(rng)
    return np.clip(layers * 200.0, 0, 255).astype(
        np.uint8
    )  # 200: room for values up to 1.27; shaders multiply by 255 / 200


def _asphalt(rng: np.random.Generator) -> np.ndarray:
    grain = 0.16 * noise(rng, 64, 3, 0.9) + 0.10 * noise(rng, 4, 3)
    value = 1.0 + grain
    for _ in range(3):  # cracks: random walks
        x, y, turn = rng.uniform(0, SIZE), rng.uniform(0, SIZE), rng.uniform(0, 2 * np.pi)
        for _ in range(rng.integers(60, 160)):
            turn += rng.normal(0, 0.35)
            x, y = (x + np.cos(turn)) % SIZE, (y + np.sin(turn)) % SIZE
            value[int(y), int(x)] *= 0.72
    for _ in range(2):  # a patch of newer tar
        x, y, w, h = rng.integers(0, SIZE, 2).tolist() + rng.integers(14, 60, 2).tolist()
        rows, columns = np.arange(y, y + h) % SIZE, np.arange(x, x + w) % SIZE
        value[np.ix_(rows, columns)] *= rng.uniform(0.82, 0.93)
    puddle = np.clip(0.5 + 1.4 * noise(rng, 3, 2), 0.0, 1.0)
    return np.stack([value, value, value * 1.01, puddle], -1)


def _paving(rng: np.random.Generator) -> np.ndarray:
    tiles = 6
    step = SIZE // tiles
    shade = rng.uniform(0.9, 1.06, (tiles + 1, tiles + 1))
    at = np.minimum(np.arange(SIZE) // step, tiles)
    value = shade[np.ix_(at, at)] + 0.06 * noise(rng, 32, 3)
    joint = np.arange(SIZE) % step < 2
    value[joint] *= 0.72
    value[:, joint] *= 0.72
    return value


def _grass(rng: np.random.Generator) -> np.ndarray:
    value = 1.0 + 0.28 * noise(rng, 5, 6, 0.8)
    dry = np.clip(0.4 * noise(rng, 3, 3), 0.0, 1.0)
    return np.stack([value * (1.0 + 0.5 * dry), value, value * (1.0 - 0.2 * dry)], -1)


def _facade(rng: np.random.Generator) -> np.ndarray:
    """Four bays of four storeys: wall with windows (glass, frame, sill), a share of them lit at night."""
    wall = 1.0 + 0.06 * noise(rng, 24, 3, 0.8)
    picture = np.repeat(wall[..., None], 4, -1)
    picture[..., 3] = 0.0
    cell = SIZE // 4
    style = rng.integers(3)  # single windows, wide windows, glass bands
    left, right = ((0.28, 0.72), (0.12, 0.88), (0.0, 1.0))[style]
    low, high = rng.uniform(0.18, 0.32), rng.uniform(0.76, 0.88)
    y0, y1 = int(low * cell), int(high * cell)
    x0, x1 = int(left * cell), int(right * cell)
    glass = np.array([0.30, 0.36, 0.43]) * rng.uniform(0.7, 1.15)
    for storey in range(4):
        picture[storey * cell : storey * cell + 3, :, :3] *= 0.85  # floor line
        for bay in range(4):
            pane = picture[storey * cell + y0 : storey * cell + y1, bay * cell + x0 : bay * cell + x1]
            shade = np.linspace(0.75, 1.3, pane.shape[0])[:, None, None]
            pane[..., :3] = glass * shade * rng.uniform(0.75, 1.2)
            if rng.random() < 0.3:  # blind half down
                pane[pane.shape[0] // 2 :, :, :3] = rng.uniform(0.55, 0.8)
            if rng.random() < 0.35:
                pane[..., 3] = rng.uniform(0.5, 1.0)
            pane[:, : 2 if style < 2 else 1, :3] = 0.62
            pane[:, pane.shape[1] // 2 : pane.shape[1] // 2 + 2, :3] = 0.62
            pane[-2:, :, :3] = 0.55
            if style < 2:
                sill = picture[storey * cell + y0 - 3 : storey * cell + y0, bay * cell + x0 : bay * cell + x1]
                sill[..., :3] = 1.15
    return picture


def _shops(rng: np.random.Generator) -> np.ndarray:
    """A ground floor, 12 m x 4 m: three shop windows, doors, a sign band in some colour."""
    picture = np.ones((SIZE, SIZE, 4)) * 0.75
    picture[..., 3] = 0.0
    third = SIZE // 3
    for shop in range(3):
        x = shop * third
        picture[24:176, x + 8 : x + 58, :3] = np.array([0.26, 0.31, 0.36]) * rng.uniform(0.8, 1.2)
        picture[24:176, x + 8 : x + 58, 3] = rng.uniform(0.4, 1.0)
        picture[4:176, x + 62 : x + 80, :3] = rng.uniform(0.2, 0.5, 3)
        picture[190:236, x + 4 : x + 82, :3] = rng.uniform(0.25, 1.0, 3)
        picture[190:236, x + 4 : x + 82, 3] = 0.35
    return picture
