"""Draws what a rig of cameras sees of a town with its traffic, lights and weather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import moderngl
import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera
from wamdiff2_sim.render import actors as tables
from wamdiff2_sim.render import mesh, textures
from wamdiff2_sim.render.camera import Atlas, View, look, pack
from wamdiff2_sim.render.context import create_context
from wamdiff2_sim.render.id_pass import IdImage, IdPass
from wamdiff2_sim.render.look import Look, look_of
from wamdiff2_sim.render.programs import ProgramSet, Released
from wamdiff2_sim.render.things import Chunks, Things, in_view
from wamdiff2_sim.render.town import Town, build_town
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.types import ActorView, LightState, Pose, WeatherSpec

SIGNAL_RANGE_M = 150.0
RAIN_DROPS = 260
CORNERS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], "f4")


class Renderer:
    """One rig in one town under one weather; town and weather can be changed.

    `rig`: the cameras, in the order of the pictures. `device_index`: the EGL device (see `create_context`).
    Each renderer has its own graphics context; call `release` when done. Use it from one thread only.
    """

    def __init__(
        self,
        town: RoadMap | Town,
        rig: Sequence[Camera],
        weather: WeatherSpec | None = None,
        seed: int | None = None,
        device_index: int | None = None,
    ) -> None:
        if not rig:
            raise ConfigError("a rig needs at least one camera, got none")
        self.rig = tuple(rig)
        self.context = create_context(device_index)
        self._atlas: Atlas = pack([(camera.width, camera.height) for camera in self.rig])
        size = (self._atlas.width, self._atlas.height)
        self._colour, self._depth = self.context.renderbuffer(size, 4), self.context.depth_renderbuffer(size)
        self._frame = self.context.framebuffer([self._colour], self._depth)
        self._pixels = np.zeros((size[1], size[0], 3), np.uint8)
        self._things = Things(self.context)
        self._corners = self.context.buffer(CORNERS.tobytes())
        self._dome = self.context.buffer(dome().tobytes())
        self._programs: dict[tuple[str, ...], ProgramSet] = {}
        self._look: Look = look_of(weather or WeatherSpec())
        self._town_parts: list[Released] = []
        self._id_pass: IdPass | None = None
        self.set_town(town, seed)

    def set_town(self, town: RoadMap | Town, seed: int | None = None) -> None:
        """Build and upload another town. A ready-made `Town` can be shared between renderers."""
        self.town = town if isinstance(town, Town) else build_town(town, seed)
        with self.context:
            self._release_town()
            self._chunks = Chunks(self.context, self.town.mesh)
            size = (textures.SIZE, textures.SIZE, textures.LAYERS)
            pixels = textures.texture_array(self.town.seed).tobytes()
            self._texture = self.context.texture_array(size, 4, pixels)
            self._texture.build_mipmaps()
            self._texture.filter = (moderngl.LINEAR_MIPMAP_NEAREST, moderngl.LINEAR)
            self._town_parts = [self._chunks, self._texture]
            for programs in self._programs.values():
                programs.bind_town(self._chunks)
            self._set_look()

    def set_weather(self, weather: WeatherSpec) -> None:
        """Change the look."""
        self._look = look_of(weather)
        with self.context:
            self._set_look()

    def render(
        self, actors: Sequence[ActorView], ego_pose: Pose, lights: Mapping[int, LightState], time: float = 0.0
    ) -> dict[str, np.ndarray]:
        """Pictures (H, W, 3) uint8 RGB by camera name, in rig order, of the world around base_link at `ego_pose`."""
        with self.context:
            self._draw_atlas(actors, ego_pose, lights, time)
        images = {}
        for camera, (x, y, w, h) in zip(self.rig, self._atlas.places, strict=True):
            images[camera.name] = self._pixels[y : y + h, x : x + w].copy()
        return images

    def render_ids(
        self, camera: Camera, actors: Sequence[ActorView], ego_pose: Pose, size: tuple[int, int] | None = None
    ) -> IdImage:
        """Ids as seen by any `camera`, at `size` (width, height; default: half the camera's).

        Number 1 + i is actors[i], and 1 + len(actors) + h the signal head h of `town.heads`; the town hides, with id 0.
        """
        size = size or (camera.width // 2, camera.height // 2)
        rows, shapes = self._collect(actors, ego_pose, {})
        with self.context:
            if self._id_pass is None or self._id_pass.size != size:
                if self._id_pass is not None:
                    self._id_pass.release()
                self._id_pass = IdPass(self.context, self._things, self._chunks, size)
            return self._id_pass.draw(look(camera, ego_pose), rows, shapes, len(actors) + len(self.town.heads.group))

    def release(self) -> None:
        """Free the context and all that is in it."""
        with self.context:
            self._release_town()
            parts: list[Released] = [*self._programs.values(), self._things, self._corners, self._dome]
            for part in (*parts, self._frame, self._colour, self._depth):
                part.release()
        self.context.release()

    def _release_town(self) -> None:
        if self._id_pass is not None:
            self._id_pass.release()
            self._id_pass = None
        for part in self._town_parts:
            part.release()
        self._town_parts = []

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _set_look(self) -> None:
        """Choose (and first compile) the programs for this weather, and tell them its colours."""
        k = self._look
        if k.switches not in self._programs:
            self._programs[k.switches] = ProgramSet(self.context, k.switches, self._things, self._corners, self._dome)
            self._programs[k.switches].bind_town(self._chunks)
        horizon, zenith = np.array(k.horizon), np.array(k.zenith)
        self._now = self._programs[k.switches]
        self._now.set(
            u_sun=k.sun, u_sun_colour=k.sun_colour, u_sky_light=k.sky_light, u_ground_light=k.ground_light,
            u_fog_colour=k.horizon, u_fog=k.fog, u_horizon=k.horizon, u_zenith=k.zenith, u_glow=k.glow, u_cloud=k.cloud,
            u_wet=k.wet, u_reflection=tuple(0.5 * horizon + 0.4 * zenith), u_night=1.0 if k.night else 0.0,
            u_lamps=1.0 if k.night else 0.0, u_mirror_low=tuple(0.45 * horizon), u_shadow=k.shadow,
            u_mirror_high=tuple(0.5 * horizon + 0.5 * zenith), u_shift=k.shadow_shift, u_texture=0,
        )  # fmt: skip

    def _draw_atlas(
        self, actors: Sequence[ActorView], ego_pose: Pose, lights: Mapping[int, LightState], time: float
    ) -> None:
        width, height = self._atlas.width, self._atlas.height
        self._frame.use()
        self._frame.viewport = (0, 0, width, height)
        self._frame.clear(0.0, 0.0, 0.0, 1.0)
        rows, shapes = self._collect(actors, ego_pose, lights)
        self._texture.use(0)
        self._now.set(u_time=time, u_drift=(0.002 * time, 0.001 * time), u_ego=_to_ego(ego_pose))
        for camera, place in zip(self.rig, self._atlas.places, strict=True):
            self.context.viewport = place
            self._draw(look(camera, ego_pose), rows, shapes)
        self._frame.read_into(self._pixels, (0, 0, width, height), components=3, alignment=1)

    def _collect(
        self, actors: Sequence[ActorView], ego: Pose, lights: Mapping[int, LightState]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Instances of the actors and signal heads around the ego, and their shapes."""
        rows, shapes = tables.actor_rows(actors, (ego.x, ego.y))
        heads = tables.head_rows(self.town.heads, lights, len(actors) + 1)
        heads = heads[np.hypot(heads["place"][:, 0] - ego.x, heads["place"][:, 1] - ego.y) < SIGNAL_RANGE_M]
        shapes = np.concatenate([shapes, np.full(len(heads), tables.SHAPE_NAMES.index("signal"))])
        return np.concatenate([rows, heads]), shapes

    def _draw(self, view: View, rows: np.ndarray, shapes: np.ndarray) -> None:
        gl, arrays = self.context, self._now.arrays
        self._now.set(u_matrix=tuple(view.matrix.T.ravel()), u_eye=tuple(view.eye))
        gl.enable_only(moderngl.DEPTH_TEST | moderngl.CULL_FACE)
        gl.front_face, gl.depth_func = "cw", "<="
        (count,) = self._things.upload([in_view(view, rows, shapes)])
        if count:
            self._things.draw(arrays["ACTOR"])
        self._chunks.draw(arrays["STATIC"], view)
        gl.enable_only(moderngl.DEPTH_TEST)
        arrays["SKY"].render(moderngl.TRIANGLES)
        gl.enable_only(moderngl.DEPTH_TEST | moderngl.BLEND)
        self._frame.depth_mask = False
        arrays["SUN"].render(moderngl.TRIANGLE_STRIP)
        if count:
            arrays["SHADOW"].render(moderngl.TRIANGLE_STRIP, instances=count)
        if self._look.rain > 0.0:
            gl.enable_only(moderngl.BLEND)
            self._now.set(u_pixel=(1.0 / view.camera.width, 1.0 / view.camera.height))
            arrays["RAIN"].render(moderngl.TRIANGLE_STRIP, instances=int(self._look.rain * RAIN_DROPS) + 1)
        self._frame.depth_mask = True


def _to_ego(ego: Pose) -> tuple[float, ...]:
    """Map -> ego frame, (16,) column by column."""
    c, s = np.cos(ego.yaw), np.sin(ego.yaw)
    matrix = np.eye(4)
    matrix[:3, :3] = [[c, s, 0], [-s, c, 0], [0, 0, 1]]
    matrix[:3, 3] = -matrix[:3, :3] @ (ego.x, ego.y, ego.z)
    return tuple(matrix.T.ravel())


def dome(around: int = 48, up: int = 14) -> np.ndarray:
    """(N, 3) f4 unit rays: triangles of a sky dome, from a little below the horizon, denser near it."""
    turn = np.linspace(0.0, 2 * np.pi, around + 1)
    height = np.concatenate(([-0.35, -0.02], np.pi / 2 * np.linspace(0.0, 1.0, up - 1) ** 1.5))
    h, t = np.meshgrid(height, turn, indexing="ij")
    rays = np.stack([np.cos(h) * np.cos(t), np.cos(h) * np.sin(t), np.sin(h)], -1).reshape(-1, 3)
    return rays[mesh.ribbon_triangles(up + 1, around + 1)].reshape(-1, 3).astype("f4")
