"""Shader programs for one kind of weather, with what they are fed and their uniforms."""

from __future__ import annotations

from typing import Protocol

import moderngl

from wamdiff2_sim.render import mesh, shaders
from wamdiff2_sim.render.things import Chunks, Things

NAMES = ("STATIC", "ACTOR", "SHADOW", "SKY", "SUN", "RAIN")


class Released(Protocol):
    """Anything that holds graphics memory."""

    def release(self) -> None: ...


class ProgramSet:
    """Programs compiled with `switches`; `arrays` by program name are ready to draw once a town is bound."""

    def __init__(
        self,
        context: moderngl.Context,
        switches: tuple[str, ...],
        things: Things,
        corners: moderngl.Buffer,
        dome: moderngl.Buffer,
    ) -> None:
        self._context = context
        self._programs: dict[str, moderngl.Program] = {}
        for name in NAMES:
            vertex, fragment = (getattr(shaders, f"{name}_{stage}") for stage in ("VERTEX", "FRAGMENT"))
            self._programs[name] = context.program(
                vertex_shader=shaders.source(vertex, switches), fragment_shader=shaders.source(fragment, switches)
            )
        self._uniforms: dict[str, list[moderngl.Uniform]] = {}
        for program in self._programs.values():
            for name in program:
                member = program[name]
                if isinstance(member, moderngl.Uniform):
                    self._uniforms.setdefault(name, []).append(member)
        corner = (corners, "2f4", "in_corner")
        self.arrays = {
            "ACTOR": self._array("ACTOR", things.content()),
            "SHADOW": self._array("SHADOW", [corner, things.shadow_content()]),
            "SKY": self._array("SKY", [(dome, "3f4", "in_ray")]),
            "SUN": self._array("SUN", [corner]),
            "RAIN": self._array("RAIN", [corner]),
        }

    def _array(self, name: str, content: list[tuple], indices: moderngl.Buffer | None = None) -> moderngl.VertexArray:
        # the compiler drops inputs that a variant does not use: those are skipped
        return self._context.vertex_array(self._programs[name], content, index_buffer=indices, skip_errors=True)

    def bind_town(self, chunks: Chunks) -> None:
        """Take the static geometry from `chunks` from now on."""
        if "STATIC" in self.arrays:
            self.arrays["STATIC"].release()
        content = [(chunks.vertices, mesh.VERTEX_FORMAT, *mesh.VERTEX_NAMES)]
        self.arrays["STATIC"] = self._array("STATIC", content, chunks.indices)

    def set(self, **values: object) -> None:
        """Set uniforms in every program that has them."""
        for name, value in values.items():
            for uniform in self._uniforms.get(name, ()):
                uniform.value = value

    def release(self) -> None:
        parts: list[Released] = [*self.arrays.values(), *self._programs.values()]
        for part in parts:
            part.release()
