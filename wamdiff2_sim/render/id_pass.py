"""Pictures of ids: which thing is in front at each pixel, and how many pixels each would cover alone."""

from __future__ import annotations

from dataclasses import dataclass

import moderngl
import numpy as np

from wamdiff2_sim.render import mesh, shaders
from wamdiff2_sim.render.camera import View
from wamdiff2_sim.render.things import Chunks, Things, in_view

LAYERS = 8  # pictures of one read-back: the scene, then things that do not overlap one another


@dataclass(frozen=True)
class IdImage:
    """`image` (h, w) int32: 0 town or sky, 1 + i for actor i, then signal heads.

    `visible`, `alone` (1 + things,): pixel counts.
    """

    image: np.ndarray
    visible: np.ndarray
    alone: np.ndarray

    def fraction(self, number: int) -> float:
        """Visible part of thing `number`, 0 when it covers no pixel at all."""
        return float(self.visible[number] / self.alone[number]) if self.alone[number] else 0.0


class IdPass:
    """Draws ids in pictures of (width, height) pixels, whatever the camera's size."""

    def __init__(self, context: moderngl.Context, things: Things, chunks: Chunks, size: tuple[int, int]) -> None:
        self.size = size
        self._context, self._things, self._chunks = context, things, chunks
        self._program = context.program(shaders.source(shaders.ID_VERTEX), shaders.source(shaders.ID_FRAGMENT))
        self._static_program = context.program(
            shaders.source(shaders.ID_STATIC_VERTEX), shaders.source(shaders.ID_STATIC_FRAGMENT)
        )
        tall = (size[0], size[1] * LAYERS)
        self._frame = context.framebuffer([context.renderbuffer(tall, 4)], context.depth_renderbuffer(tall))
        self._array = context.vertex_array(self._program, things.content(), skip_errors=True)
        town = [(chunks.vertices, "3f4 20x1", mesh.VERTEX_NAMES[0])]
        self._static = context.vertex_array(self._static_program, town, index_buffer=chunks.indices)

    def draw(self, view: View, rows: np.ndarray, shapes: np.ndarray, number_of_things: int) -> IdImage:
        """Ids and counts for the instances `rows` (their `id` fields are the numbers), seen from `view`."""
        rows, shapes = in_view(view, rows, shapes)
        scene, counts = self._pictures(view, [(rows, shapes)], number_of_things, with_town=True)
        visible = counts
        alone = np.zeros_like(counts)
        layers = _layers(view, rows)
        for start in range(0, len(layers), LAYERS):
            groups = [(rows[layer], shapes[layer]) for layer in layers[start : start + LAYERS]]
            alone += self._pictures(view, groups, number_of_things, with_town=False)[1]
        alone[0] = scene.size
        return IdImage(scene, visible, alone)

    def _pictures(
        self, view: View, groups: list[tuple[np.ndarray, np.ndarray]], number_of_things: int, with_town: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """One picture a group, one above the other: ids (h * groups, w), and pixels per id."""
        gl, (width, height) = self._context, self.size
        sizes = self._things.upload(groups)
        self._frame.use()
        self._frame.viewport = (0, 0, width, height * len(groups))
        self._frame.clear()
        matrix = tuple(view.matrix.T.ravel())
        self._program["u_matrix"] = self._static_program["u_matrix"] = matrix
        gl.enable_only(moderngl.DEPTH_TEST | moderngl.CULL_FACE)
        gl.front_face, gl.depth_func = "cw", "<="
        for number, size in enumerate(sizes):
            gl.viewport = (0, height * number, width, height)
            if size:
                self._things.draw(self._array, number)
        if with_town:
            self._chunks.draw(self._static, view)
        bytes_read = self._frame.read((0, 0, width, height * len(groups)), components=4)
        ids = np.frombuffer(bytes_read, "<u4").reshape(height * len(groups), width).astype(np.int32)
        return ids, np.bincount(ids.ravel(), minlength=number_of_things + 1)

    def release(self) -> None:
        for thing in (self._array, self._static, self._frame, self._program, self._static_program):
            thing.release()


def _layers(view: View, rows: np.ndarray) -> list[np.ndarray]:
    """Row numbers in groups; the members of one do not overlap in the picture, so that one picture counts them all."""
    local = view.to_camera(rows["place"][:, :3] + np.array([0.0, 0.0, 0.5]) * rows["size"][:, :3])
    reach = np.hypot(rows["size"][:, 0], rows["size"][:, 2]) * 0.5 + 0.6
    depth = local[:, 2] - reach
    scale = np.where(
        depth > 0.3, 1.0 / np.maximum(depth, 0.3), np.inf
    )  # around or behind the eye: anywhere in the picture
    with np.errstate(invalid="ignore"):
        middle = np.where(np.isinf(scale), 0.0, local[:, 0] / np.maximum(local[:, 2], 0.3))
        half = np.where(np.isinf(scale), np.inf, reach * scale * 1.1)
    layers: list[list[int]] = []
    for row in np.argsort(-half, kind="stable").tolist():
        for layer in layers:
            if np.all(np.abs(middle[layer] - middle[row]) > half[layer] + half[row]):
                layer.append(row)
                break
        else:
            layers.append([row])
    return [np.sort(np.array(layer)) for layer in layers]
