"""The picture maker of the embedded world: OpenGL through EGL, on a GPU or in software."""

from wamdiff2_sim.render.renderer import Renderer
from wamdiff2_sim.render.town import Town, build_town

__all__ = ["Renderer", "Town", "build_town"]
