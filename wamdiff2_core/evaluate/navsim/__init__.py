"""NAVSIM's scores, PDMS and EPDMS, without nuPlan: `score(scene)` for a scene of a scene file."""

from wamdiff2_core.evaluate.navsim.scene import read_scene
from wamdiff2_core.evaluate.navsim.scoring import score, score_plans

__all__ = ["read_scene", "score", "score_plans"]
