"""Draws what a rig of cameras sees of a town with its traffic, lights and weather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import moderngl
import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera
from wamdiff2_sim.render import actor_mesh, actors as tables, mesh, shaders, textures
from wamdiff2_sim.render.camera import Atlas, View, look, pack
from wamdiff2_sim.render.context import create_context
from wamdiff2_sim.render.look import Look, look_of
from wamdiff2_sim.render.town import Town, build_town
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.types import ActorView, LightState, Pose, WeatherSpec

DETAIL_RANGE_M = 130.0
SURFACE_RANGE_M = 420.0
SIGNAL_RANGE_M = 150.0
MAX_INSTANCES = 512
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
        self._pixels = np.zeros((size[1], size[0], 4), np.uint8)
        self._shapes = {name: self._buffer(make()) for name, make in actor_mesh.SHAPES.items()}
        self._instances = {
            name: self.context.buffer(reserve=MAX_INSTANCES * tables.INSTANCE.itemsize, dynamic=True) for name in self._shapes
        }
        self._corners = self._buffer(CORNERS)
        self._texture: moderngl.TextureArray | None = None
        self._static: list[moderngl.Buffer] = []
        self._programs: dict[str, moderngl.Program] = {}
        self._arrays: dict[str, moderngl.VertexArray] = {}
        self._look: Look = look_of(weather or WeatherSpec())
        self.set_town(town, seed)

    def set_town(self, town: RoadMap | Town, seed: int | None = None) -> None:
        """Build and upload another town. A ready-made `Town` can be shared between renderers."""
        self.town = town if isinstance(town, Town) else build_town(town, seed)
        for thing in (*self._static, *([self._texture] if self._texture else [])):
            thing.release()
        self._static = [self._buffer(self.town.mesh.vertices), self._buffer(self.town.mesh.indices)]
        layers = textures.texture_array(self.town.seed)
        self._texture = self.context.texture_array((textures.SIZE, textures.SIZE, textures.LAYERS), 4, layers.tobytes())
        self._texture.build_mipmaps()
        self._texture.filter = (moderngl.LINEAR_MIPMAP_NEAREST, moderngl.LINEAR)
        self._compile()

    def set_weather(self, weather: WeatherSpec) -> None:
        """Change the look; compiles shaders when night or wetness begin or end."""
        before, self._look = self._look, look_of(weather)
        if before.switches != self._look.switches:
            self._compile()
        self._set_look()

    def render(
        self, actors: Sequence[ActorView], ego_pose: Pose, lights: Mapping[int, LightState], time: float = 0.0
    ) -> dict[str, np.ndarray]:
        """Pictures (H, W, 3) uint8 RGB by camera name, in rig order, of the world around base_link at `ego_pose`."""
        gl = self.context
        self._frame.use()
        self._frame.viewport = (0, 0, self._atlas.width, self._atlas.height)
        self._frame.clear(0.0, 0.0, 0.0, 1.0)
        counts = self._upload(actors, ego_pose, lights)
        self._texture.use(0)
        self._set_frame(ego_pose, time)
        for camera, place in zip(self.rig, self._atlas.places, strict=True):
            gl.viewport = place
            self._draw(look(camera, ego_pose), counts)
        self._frame.read_into(self._pixels, components=4)
        images = {}
        for camera, (x, y, w, h) in zip(self.rig, self._atlas.places, strict=True):
            images[camera.name] = np.ascontiguousarray(self._pixels[y : y + h, x : x + w, :3])
        return images

    def release(self) -> None:
        """Free the context and all that is in it."""
        for thing in (*self._arrays.values(), *self._programs.values(), *self._static, *self._shapes.values()):
            thing.release()
        for thing in (*self._instances.values(), self._corners, self._texture, self._frame):
            thing.release()
        self.context.release()

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
        for name in ("STATIC", "ACTOR", "SHADOW", "SKY"):
            vertex, fragment = (getattr(shaders, f"{name}_{stage}") for stage in ("VERTEX", "FRAGMENT"))
            self._programs[name] = self.context.program(shaders.source(vertex, on), shaders.source(fragment, on))
        vertices, indices = self._static
        make = self.context.vertex_array
        static = [(vertices, mesh.VERTEX_FORMAT, *mesh.VERTEX_NAMES)]
        self._arrays["STATIC"] = make(self._programs["STATIC"], static, index_buffer=indices, skip_errors=True)
        self._arrays["SKY"] = make(self._programs["SKY"], [(self._corners, "2f4", "in_corner")])
        for name, shape in self._shapes.items():
            rows = (self._instances[name], tables.INSTANCE_FORMAT, *tables.INSTANCE_NAMES)
            parts = (shape, actor_mesh.VERTEX_FORMAT, *actor_mesh.VERTEX_NAMES)
            self._arrays[name] = make(self._programs["ACTOR"], [parts, rows], skip_errors=True)
            shadow = [(self._corners, "2f4", "in_corner"), (self._instances[name], tables.SHADOW_FORMAT, *tables.SHADOW_NAMES)]
            self._arrays["shadow " + name] = make(self._programs["SHADOW"], shadow)
        self._set_look()

    def _set(self, **values: object) -> None:
        """Set uniforms in every program that has them."""
        for program in self._programs.values():
            for name, value in values.items():
                if name in program:
                    program[name] = value

    def _set_look(self) -> None:
        k = self._look
        middle = np.array(k.horizon) * 0.45
        self._set(
            u_sun=k.sun, u_sun_colour=k.sun_colour, u_sky_light=k.sky_light, u_ground_light=k.ground_light,
            u_fog_colour=k.horizon, u_fog=k.fog, u_horizon=k.horizon, u_zenith=k.zenith, u_glow=k.glow, u_cloud=k.cloud,
            u_wet=k.wet, u_reflection=tuple(0.5 * np.array(k.horizon) + 0.4 * np.array(k.zenith)),
            u_night=1.0 if k.night else 0.0, u_lamps=0.75 if k.night else 0.0, u_mirror_low=tuple(middle),
            u_mirror_high=tuple(0.5 * np.array(k.horizon) + 0.5 * np.array(k.zenith)), u_shadow=k.shadow,
            u_shift=k.shadow_shift, u_texture=0,
        )  # fmt: skip

    def _set_frame(self, ego: Pose, time: float) -> None:
        c, s = np.cos(ego.yaw), np.sin(ego.yaw)
        to_ego = np.eye(4)
        to_ego[:3, :3] = [[c, s, 0], [-s, c, 0], [0, 0, 1]]
        to_ego[:3, 3] = -to_ego[:3, :3] @ (ego.x, ego.y, ego.z)
        self._set(u_time=time, u_drift=(0.002 * time, 0.001 * time), u_ego=tuple(to_ego.T.ravel()))

    def _upload(self, actors: Sequence[ActorView], ego: Pose, lights: Mapping[int, LightState]) -> dict[str, int]:
        rows = tables.actor_rows(actors, np.array([ego.x, ego.y]))
        heads = tables.head_rows(self.town.heads, lights, len(actors) + 1)
        near = np.hypot(heads["place"][:, 0] - ego.x, heads["place"][:, 1] - ego.y) < SIGNAL_RANGE_M
        rows["signal"] = heads[near]
        counts = {}
        for name, table in rows.items():
            if len(table) > MAX_INSTANCES:
                raise ConfigError(f"at most {MAX_INSTANCES} instances of {name} can be drawn, got {len(table)}")
            counts[name] = len(table)
            if len(table):
                self._instances[name].write(table.tobytes())
        return counts

    def _draw(self, view: View, counts: dict[str, int]) -> None:
        gl = self.context
        self._set(u_matrix=tuple(view.matrix.T.ravel()), u_eye=tuple(view.eye))
        camera = view.camera
        half = camera.width / (2.0 * camera.focal_px), camera.height / (2.0 * camera.focal_px)
        rays = np.stack([view.rotation[0] * half[0], view.rotation[1] * half[1], view.rotation[2]])
        self._set(u_rays=tuple(rays.ravel()))
        gl.enable_only(moderngl.DEPTH_TEST | moderngl.CULL_FACE)
        gl.front_face, gl.depth_func = "cw", "<="
        for name, count in counts.items():
            if count:
                self._arrays[name].render(instances=count)
        self._draw_town(view)
        gl.enable_only(moderngl.DEPTH_TEST)
        self._arrays["SKY"].render(moderngl.TRIANGLE_STRIP)
        gl.enable_only(moderngl.DEPTH_TEST | moderngl.BLEND)
        self._frame.depth_mask = False
        for name, count in counts.items():
            if count and name != "signal":
                self._arrays["shadow " + name].render(moderngl.TRIANGLE_STRIP, instances=count)
        self._frame.depth_mask = True

    def _draw_town(self, view: View) -> None:
        """Chunks in view, near ones first (they hide the rest before it is shaded)."""
        town = self.town.mesh
        seen = np.flatnonzero(view.visible(town.centre, town.radius, SURFACE_RANGE_M))
        distance = np.linalg.norm(town.centre[seen] - view.eye, axis=1) - town.radius[seen]
        keep = ~town.detail[seen] | (distance < DETAIL_RANGE_M)
        order = seen[keep][np.argsort(distance[keep], kind="stable")]
        array = self._arrays["STATIC"]
        for chunk in order.tolist():
            array.render(vertices=int(town.count[chunk]), first=int(town.first[chunk]))
