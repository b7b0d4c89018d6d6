"""What a camera truly sees: boxes of road users and signal heads with their visible part."""

from __future__ import annotations

from collections.abc import Sequence

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera
from wamdiff2_sim.render.boxes import project_boxes, project_lights
from wamdiff2_sim.render.renderer import Renderer
from wamdiff2_sim.types import ActorView, GtBox, Pose

MIN_PIXELS = 2.0  # of the camera's picture: smaller things cannot be seen


def camera_named(renderer: Renderer, name: str) -> Camera:
    """The camera of the renderer's rig. Raises ConfigError when there is none of that name."""
    for camera in renderer.rig:
        if camera.name == name:
            return camera
    raise ConfigError(f"expected one of the cameras {', '.join(c.name for c in renderer.rig)}, got {name!r}")


def true_boxes(renderer: Renderer, camera_name: str, actors: Sequence[ActorView], ego: Pose) -> list[GtBox]:
    """Boxes in pixels of that camera, nearest first; things without a single visible id pixel are left out."""
    camera = camera_named(renderer, camera_name)
    ids = renderer.render_ids(camera, actors, ego)
    found = [
        GtBox(actor.kind, box.xyxy, box.visible_fraction, box.distance, box.id, camera_name)
        for actor, box in _with_actor(actors, project_boxes(actors, camera, ego, ids))
    ]
    heads = project_lights(renderer.town.heads, camera, ego, ids, len(actors))
    found += [GtBox("light", box.xyxy, box.visible_fraction, box.distance, -1, camera_name) for box in heads]
    found = [box for box in found if box.visible > 0.0 and _big_enough(box)]
    return sorted(found, key=lambda box: box.distance)


def _with_actor(actors: Sequence[ActorView], boxes):
    by_id = {actor.id: actor for actor in actors}
    return [(by_id[box.id], box) for box in boxes]


def _big_enough(box: GtBox) -> bool:
    x1, y1, x2, y2 = box.xyxy
    return x2 - x1 >= MIN_PIXELS and y2 - y1 >= MIN_PIXELS
