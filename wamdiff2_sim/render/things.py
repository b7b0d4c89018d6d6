"""GPU tables of what moves and of what is drawn: instances by shape, and town chunks in view."""

from __future__ import annotations

from collections.abc import Sequence

import moderngl
import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_sim.render import actor_mesh
from wamdiff2_sim.render import actors as tables
from wamdiff2_sim.render.camera import FAR_M, View
from wamdiff2_sim.render.mesh import StaticMesh

MAX_INSTANCES = 2048
MAX_GROUPS = 64

# moderngl steps through both kinds of draws by 20 bytes
_ARRAYS_DRAW = np.dtype([(name, "u4") for name in ("count", "instances", "first", "base_instance", "unused")])
_ELEMENTS_DRAW = np.dtype([(name, "u4") for name in ("count", "instances", "first", "base", "base_instance")])


class Things:
    """Shapes of all actors in one buffer, and groups of instances; a group is drawn by one call."""

    def __init__(self, context: moderngl.Context) -> None:
        shapes = [make() for make in actor_mesh.SHAPES.values()]
        self._sizes = np.array([len(shape) for shape in shapes])
        self._shapes = context.buffer(np.concatenate(shapes).tobytes())
        self._instances = context.buffer(reserve=MAX_INSTANCES * tables.INSTANCE.itemsize, dynamic=True)
        self._draws = context.buffer(reserve=MAX_GROUPS * len(shapes) * _ARRAYS_DRAW.itemsize, dynamic=True)

    def content(self) -> list[tuple]:
        """What a vertex array that draws things is made of."""
        rows = (self._instances, tables.INSTANCE_FORMAT, *tables.INSTANCE_NAMES)
        return [(self._shapes, actor_mesh.VERTEX_FORMAT, *actor_mesh.VERTEX_NAMES), rows]

    def shadow_content(self) -> tuple:
        """The instance part of a vertex array that draws shadows."""
        return (self._instances, tables.SHADOW_FORMAT, *tables.SHADOW_NAMES)

    def upload(self, groups: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[int]:
        """Groups of (rows INSTANCE, shapes), each sorted by shape; gives the sizes of the groups."""
        total = sum(len(rows) for rows, _ in groups)
        if total > MAX_INSTANCES or len(groups) > MAX_GROUPS:
            raise ConfigError(
                f"at most {MAX_INSTANCES} things in {MAX_GROUPS} groups can be drawn, got {total} in {len(groups)}"
            )
        draws = np.zeros((len(groups), len(self._sizes)), _ARRAYS_DRAW)
        draws["count"] = self._sizes
        draws["first"] = np.cumsum(self._sizes) - self._sizes
        draws["instances"] = [np.bincount(shapes, minlength=len(self._sizes)) for _, shapes in groups]
        flat = draws["instances"].ravel()
        draws["base_instance"] = (np.cumsum(flat) - flat).reshape(draws.shape)
        if total:
            self._instances.write(np.concatenate([rows for rows, _ in groups]).tobytes())
            self._draws.write(draws.tobytes())
        return [len(rows) for rows, _ in groups]

    def draw(self, array: moderngl.VertexArray, group: int = 0) -> None:
        """Draw group number `group` of the last upload."""
        kinds = len(self._sizes)
        array.render_indirect(self._draws, moderngl.TRIANGLES, count=kinds, first=group * kinds)

    def release(self) -> None:
        for buffer in (self._shapes, self._instances, self._draws):
            buffer.release()


def in_view(view: View, rows: np.ndarray, shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The instances that may be in view, sorted by shape."""
    reach = 0.75 * rows["size"][:, :3].max(axis=1, initial=0.0)
    seen = np.flatnonzero(view.visible(rows["place"][:, :3], reach, FAR_M))
    seen = seen[np.argsort(shapes[seen], kind="stable")]
    return rows[seen], shapes[seen]


class Chunks:
    """The town's mesh on the GPU; `draw` draws the chunks in view with one call."""

    def __init__(self, context: moderngl.Context, mesh: StaticMesh) -> None:
        self._mesh = mesh
        self.vertices = context.buffer(mesh.vertices.tobytes())
        self.indices = context.buffer(mesh.indices.tobytes())
        self._draws = context.buffer(reserve=len(mesh.first) * _ELEMENTS_DRAW.itemsize, dynamic=True)

    def draw(self, array: moderngl.VertexArray, view: View) -> None:
        """Near chunks first: they hide the rest before it is shaded."""
        mesh = self._mesh
        distance = np.hypot(*(mesh.cell - view.eye[:2]).T)
        chosen = (distance >= mesh.near_m) & (distance < mesh.far_m) & view.visible(mesh.centre, mesh.radius, FAR_M)
        order = np.flatnonzero(chosen)
        order = order[np.argsort(distance[order], kind="stable")]
        if len(order):
            draws = np.zeros(len(order), _ELEMENTS_DRAW)
            draws["count"], draws["first"], draws["instances"] = mesh.count[order], mesh.first[order], 1
            self._draws.write(draws.tobytes())
            array.render_indirect(self._draws, moderngl.TRIANGLES, count=len(order))

    def release(self) -> None:
        for buffer in (self.vertices, self.indices, self._draws):
            buffer.release()
