"""The picture maker of the embedded world: OpenGL through EGL, on a GPU or in software."""

from wamdiff2_sim.render.boxes import ProjectedBox, project_boxes, project_lights
from wamdiff2_sim.render.id_pass import IdImage
from wamdiff2_sim.render.renderer import Renderer
from wamdiff2_sim.render.town import Town, build_town

__all__ = ["IdImage", "ProjectedBox", "Renderer", "Town", "build_town", "project_boxes", "project_lights"]
