"""NAVSIM's scores, PDMS and EPDMS, without nuPlan: `score(scene)` for a scene of a scene file."""

from wamdiff2_core.evaluate.navsim.scoring import score

__all__ = ["score"]
