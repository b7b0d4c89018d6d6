"""Predicted motions seen from the route: who is inside the strip that we will sweep, when, and where along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wamdiff2_sim.prediction import Track
from wamdiff2_sim.route_profile import STEP_M, RouteProfile

AHEAD_M = 75.0  # window of the route that is looked at
BEHIND_M = 12.0
STRIDE = 2  # of the profile's grid: one metre is fine enough to find the nearest place
ALONG_M = 2.0  # a place farther than this from its nearest route point along the route lies beyond the window


@dataclass(frozen=True)
class OnRoute:
    """A track seen from the route, per prediction time (T,).

    `inside` the strip?; nearest `low` and farthest `high` arc length of what is inside (m); `turn`: heading difference
    to the route (rad); `middle`, `lateral`: arc length and lateral place of the track's middle (m).
    """

    track: Track
    inside: np.ndarray
    low: np.ndarray
    high: np.ndarray
    turn: np.ndarray
    middle: np.ndarray
    lateral: np.ndarray


def view_tracks(tracks: Sequence[Track], margins: Sequence[float], profile: RouteProfile, s: float) -> list[OnRoute]:
    """All tracks at once. `margins`: half width of the strip for each (m); `s`: where base_link is (m)."""
    if not tracks:
        return []
    points = np.stack([track.points for track in tracks])  # (n, T, 3, 2)
    first = min(max(0, int((s - BEHIND_M) / STEP_M)), len(profile.xy) - 2)
    line = profile.xy[first : max(int((s + AHEAD_M) / STEP_M), first + 2) : STRIDE]
    flat = points.reshape(-1, 2) - line[0]  # near zero, so that single precision is enough
    near = line - line[0]
    scores = (near * near).sum(axis=1)[None, :] - 2.0 * (flat.astype(np.float32) @ near.T.astype(np.float32))
    index = (first + STRIDE * np.argmin(scores, axis=1)).reshape(points.shape[:3])
    heading = profile.heading[index]
    gap = points - profile.xy[index]
    c, n = np.cos(heading), np.sin(heading)
    along = gap[..., 0] * c + gap[..., 1] * n
    lateral = gap[..., 1] * c - gap[..., 0] * n
    walks = np.array([track.actor.kind == "pedestrian" for track in tracks])
    swing = profile.swing[index] * walks[:, None, None]  # people may stand there; vehicles keep to their lanes
    margin = np.asarray(margins)[:, None, None]
    hit = (lateral < margin + np.maximum(swing, 0.0)) & (lateral > np.minimum(swing, 0.0) - margin)
    hit &= np.abs(along) < ALONG_M
    place = index * STEP_M + along
    low = np.where(hit, place, np.inf).min(axis=2)
    high = np.where(hit, place, -np.inf).max(axis=2)
    inside = hit.any(axis=2)
    turn = np.stack([track.yaw for track in tracks]) - heading[:, :, 1]
    turn = (turn + np.pi) % (2.0 * np.pi) - np.pi
    return [
        OnRoute(track, inside[i], low[i], high[i], turn[i], place[i, :, 1], lateral[i, :, 1])
        for i, track in enumerate(tracks)
    ]
