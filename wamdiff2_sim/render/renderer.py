"""Draws what a rig of cameras sees of a town with its traffic, lights and weather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import moderngl
import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera
from wamdiff2_sim.render import actors as tables, mesh, shaders, textures
from wamdiff2_sim.render.camera import Atlas, View, look, pack
from wamdiff2_sim.render.context import create_context
from wamdiff2_sim.render.id_pass import IdImage, IdPass
from wamdiff2_sim.render.look import Look, look_of
from wamdiff2_sim.render.things import Chunks, Things, in_view
from wamdiff2_sim.render.town import Town, build_town
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.types import ActorView, LightState, Pose, WeatherSpec

SIGNAL_RANGE_M = 150.0
CORNERS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], "f4")


class Renderer:
    """One town, one rig, one weather; weather and town can be changed. Not thread safe; call `release` when done.

    `rig`: the cameras, in the order of the pictures. Without `context` an own one is made (EGL device `device_index`).
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
        self._frame = self.context.framebuffer(
            [self.context.renderbuffer(size, 4)], self.context.depth_renderbuffer(size)
        )
        self._pixels = np.zeros((size[1], size[0], 3), np.uint8)
        self._things = Things(self.context)
        self._corners = self._buffer(CORNERS)
        self._dome = self._buffer(dome())
        self._texture: moderngl.TextureArray | None = None
        self._chunks: Chunks | None = None
        self._id_pass: IdPass | None = None
        self._programs: dict[str, moderngl.Program] = {}
        self._arrays: dict[str, moderngl.VertexArray] = {}
        self._uniforms: dict[str, list[moderngl.Uniform]] = {}
        self._look: Look = look_of(weather or WeatherSpec())
        self.set_town(town, seed)

    def set_town(self, town: RoadMap | Town, seed: int | None = None) -> None:
        """Build and upload another town. A ready-made `Town` can be shared between renderers."""
        self.town = town if isinstance(town, Town) else build_town(town, seed)
        with self.context:
            self._upload_town()

    def _upload_town(self) -> None:
        self._release_town()
        self._chunks = Chunks(self.context, self.town.mesh)
        layers = textures.texture_array(self.town.seed)
        self._texture = self.context.texture_array((textures.SIZE, textures.SIZE, textures.LAYERS), 4, layers.tobytes())
        self._texture.build_mipmaps()
        self._texture.filter = (moderngl.LINEAR_MIPMAP_NEAREST, moderngl.LINEAR)
        self._compile()

    def set_weather(self, weather: WeatherSpec) -> None:
        """Change the look; compiles shaders when night or wetness begin or end."""
        before, self._look = self._look, look_of(weather)
        with self.context:
            if before.switches != self._look.switches:
                self._compile()
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

    def _draw_atlas(self, actors: Sequence[ActorView], ego_pose: Pose, lights: Mapping[int, LightState], time: float) -> None:
        self._frame.use()
        self._frame.viewport = (0, 0, self._atlas.width, self._atlas.height)
        self._frame.clear(0.0, 0.0, 0.0, 1.0)
        rows, shapes = self._collect(actors, ego_pose, lights)
        self._texture.use(0)
        self._set_frame(ego_pose, time)
        for camera, place in zip(self.rig, self._atlas.places, strict=True):
            self.context.viewport = place
            self._draw(look(camera, ego_pose), rows, shapes)
        self._frame.read_into(self._pixels, (0, 0, self._atlas.width, self._atlas.height), components=3, alignment=1)

    def render_ids(
        self, camera: Camera, actors: Sequence[ActorView], ego_pose: Pose, size: tuple[int, int] | None = None
    ) -> IdImage:
        """Ids as seen by `camera` (any, also one that is not of the rig) at `size` (width, height; default: half the camera's).

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
            for thing in (*self._arrays.values(), *self._programs.values(), self._things, self._corners, self._dome, self._frame):
                thing.release()
        self.context.release()

    def _release_town(self) -> None:
        for thing in (self._id_pass, self._chunks, self._texture):
            if thing is not None:
                thing.release()
        self._id_pass = None

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _buffer(self, array: np.ndarray) -> moderngl.Buffer:
        return self.context.buffer(array.tobytes())

    def _compile(self) -> None:
        """Programs for this weather's switches, and what they are fed with."""
        for thing in (*self._arrays.values(), *self._programs.values()):
            thing.release()
        on = self._look.switches
        for name in ("STATIC", "ACTOR", "SHADOW", "SKY", "SUN"):
            vertex, fragment = (getattr(shaders, f"{name}_{stage}") for stage in ("VERTEX", "FRAGMENT"))
            self._programs[name] = self.context.program(shaders.source(vertex, on), shaders.source(fragment, on))
        make = self.context.vertex_array
        static = [(self._chunks.vertices, mesh.VERTEX_FORMAT, *mesh.VERTEX_NAMES)]
        self._arrays["STATIC"] = make(
            self._programs["STATIC"], static, index_buffer=self._chunks.indices, skip_errors=True
        )
        self._arrays["SKY"] = make(self._programs["SKY"], [(self._dome, "3f4", "in_ray")])
        self._arrays["SUN"] = make(self._programs["SUN"], [(self._corners, "2f4", "in_corner")])
        self._arrays["ACTOR"] = make(self._programs["ACTOR"], self._things.content(), skip_errors=True)
        shadow = [(self._corners, "2f4", "in_corner"), self._things.shadow_content()]
        self._arrays["SHADOW"] = make(self._programs["SHADOW"], shadow, skip_errors=True)
        self._uniforms = {}
        for program in self._programs.values():
            for name in program:
                if isinstance(program[name], moderngl.Uniform):
                    self._uniforms.setdefault(name, []).append(program[name])
        self._set_look()

    def _set(self, **values: object) -> None:
        """Set uniforms in every program that has them."""
        for name, value in values.items():
            for uniform in self._uniforms.get(name, ()):
                uniform.value = value

    def _set_look(self) -> None:
        k = self._look
        middle = np.array(k.horizon) * 0.45
        self._set(
            u_sun=k.sun, u_sun_colour=k.sun_colour, u_sky_light=k.sky_light, u_ground_light=k.ground_light,
            u_fog_colour=k.horizon, u_fog=k.fog, u_horizon=k.horizon, u_zenith=k.zenith, u_glow=k.glow, u_cloud=k.cloud,
            u_wet=k.wet, u_reflection=tuple(0.5 * np.array(k.horizon) + 0.4 * np.array(k.zenith)),
            u_night=1.0 if k.night else 0.0, u_lamps=1.0 if k.night else 0.0, u_mirror_low=tuple(middle),
            u_mirror_high=tuple(0.5 * np.array(k.horizon) + 0.5 * np.array(k.zenith)), u_shadow=k.shadow,
            u_shift=k.shadow_shift, u_texture=0,
        )  # fmt: skip

    def _set_frame(self, ego: Pose, time: float) -> None:
        c, s = np.cos(ego.yaw), np.sin(ego.yaw)
        to_ego = np.eye(4)
        to_ego[:3, :3] = [[c, s, 0], [-s, c, 0], [0, 0, 1]]
        to_ego[:3, 3] = -to_ego[:3, :3] @ (ego.x, ego.y, ego.z)
        self._set(u_time=time, u_drift=(0.002 * time, 0.001 * time), u_ego=tuple(to_ego.T.ravel()))

    def _collect(self, actors: Sequence[ActorView], ego: Pose, lights: Mapping[int, LightState]) -> tuple[np.ndarray, np.ndarray]:
        """Instances of the actors and signal heads around the ego, and their shapes."""
        rows, shapes = tables.actor_rows(actors, (ego.x, ego.y))
        heads = tables.head_rows(self.town.heads, lights, len(actors) + 1)
        heads = heads[np.hypot(heads["place"][:, 0] - ego.x, heads["place"][:, 1] - ego.y) < SIGNAL_RANGE_M]
        shapes = np.concatenate([shapes, np.full(len(heads), tables.SHAPE_NAMES.index("signal"))])
        return np.concatenate([rows, heads]), shapes

    def _draw(self, view: View, rows: np.ndarray, shapes: np.ndarray) -> None:
        gl = self.context
        self._set(u_matrix=tuple(view.matrix.T.ravel()), u_eye=tuple(view.eye))
        gl.enable_only(moderngl.DEPTH_TEST | moderngl.CULL_FACE)
        gl.front_face, gl.depth_func = "cw", "<="
        (count,) = self._things.upload([in_view(view, rows, shapes)])
        if count:
            self._things.draw(self._arrays["ACTOR"])
        self._chunks.draw(self._arrays["STATIC"], view)
        gl.enable_only(moderngl.DEPTH_TEST)
        self._arrays["SKY"].render(moderngl.TRIANGLES)
        gl.enable_only(moderngl.DEPTH_TEST | moderngl.BLEND)
        self._frame.depth_mask = False
        self._arrays["SUN"].render(moderngl.TRIANGLE_STRIP)
        if count:
            self._arrays["SHADOW"].render(moderngl.TRIANGLE_STRIP, instances=count)
        self._frame.depth_mask = True


def dome(around: int = 48, up: int = 14) -> np.ndarray:
    """(N, 3) f4 unit rays: triangles of a sky dome, from a little below the horizon, denser near it."""
    turn = np.linspace(0.0, 2 * np.pi, around + 1)
    height = np.concatenate(([-0.35, -0.02], np.pi / 2 * np.linspace(0.0, 1.0, up - 1) ** 1.5))
    h, t = np.meshgrid(height, turn, indexing="ij")
    rays = np.stack([np.cos(h) * np.cos(t), np.cos(h) * np.sin(t), np.sin(h)], -1).reshape(-1, 3)
    return rays[mesh.ribbon_triangles(up + 1, around + 1)].reshape(-1, 3).astype("f4")
