"""No at-fault collision and time to collision, over all plans, steps and objects at once.

Both metrics walk through the steps in order; a contact that is not the car's fault puts the object aside from then on.
So what counts is whether a contact at fault comes before the first one that is not: no loop is needed. Boxes are
only compared where the circles around them touch.
Source of the rules: nuPlan's at-fault collision and time-to-collision metrics as NAVSIM scores them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.areas import Where
from wamdiff2_core.evaluate.navsim.geometry import boxes_touch
from wamdiff2_core.evaluate.navsim.scene import STOPPED_MPS, Objects

AHEAD_COS, BEHIND_COS = np.cos(np.radians(30.0)), np.cos(np.radians(150.0))
LOOK_AHEAD = np.array([0, 3, 6, 9])  # steps of 0.1 s
TTC_STOPPED_MPS = 0.005
STATIC_SCORE = 0.5
MARGIN_M = 1e-3  # of the circles, against rounding


@dataclass(frozen=True)
class Pairs:
    """Boxes of the car and of objects that are near each other: (P,) each.

    drive, step, look, thing: indices. x, y: the object's centre in the frame of the car's (moved on) centre; cos, sin:
    of its heading there. half: (P, 2) of the object. ahead: metres by which the car's box was moved on.
    """

    drive: np.ndarray
    step: np.ndarray
    look: np.ndarray
    thing: np.ndarray
    x: np.ndarray
    y: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    half: np.ndarray
    ahead: np.ndarray

    def touching(self) -> Pairs:
        """Those that touch or overlap."""
        touch = boxes_touch(self.x, self.y, self.cos, self.sin, car.HALF_SIZE_M, self.half)
        return Pairs(*(getattr(self, one.name)[touch] for one in fields(self)))

    def front(self) -> np.ndarray:
        """Whether the car's front bumper, a line, touches the object."""
        bumper = np.array([0.0, car.HALF_SIZE_M[1]])
        return boxes_touch(self.x - car.HALF_SIZE_M[0], self.y, self.cos, self.sin, bumper, self.half)

    def bearing(self) -> tuple[np.ndarray, np.ndarray]:
        """Seen from the rear axle, before it is moved on: within 30 degrees of the heading; more than 150 off it."""
        x = self.x + self.ahead + car.REAR_AXLE_TO_CENTRE_M
        distance = np.hypot(x, self.y)
        return x > AHEAD_COS * distance, x < BEHIND_COS * distance


def touched_at_start(start: np.ndarray, objects: Objects) -> np.ndarray:
    """Objects (O,) that overlap the car in its start state (11,)."""
    touched = np.zeros(len(objects), dtype=bool)
    touched[_pairs(start[None, None], objects, np.zeros((1, 1), dtype=int), np.zeros((1, 1, 1))).touching().thing] = (
        True
    )
    return touched


def near(states: np.ndarray, objects: Objects) -> np.ndarray:
    """Which objects (O,) come near any of the states (N, 41, 11) or their projections at any time."""
    reach = np.hypot(*car.HALF_SIZE_M) + car.REAR_AXLE_TO_CENTRE_M + np.hypot(*objects.half.T)
    reach += np.abs(states[..., car.SPEED_X]).max() * LOOK_AHEAD[-1] * car.STEP_S
    low, high = states[..., :2].min(axis=(0, 1)), states[..., :2].max(axis=(0, 1))
    position = objects.poses[..., :2]
    inside = (position >= (low - reach[:, None])[:, None]) & (position <= (high + reach[:, None])[:, None])
    return np.logical_or.reduce(np.logical_and.reduce(inside, axis=2), axis=1)


def at_fault(states: np.ndarray, where: Where, objects: Objects) -> np.ndarray:
    """Contacts (N, 41, O) at each step that are the car's fault: front, or with a standing object, or from the side
    while in several lanes or off the road; never while the car stands.
    """
    steps = np.arange(states.shape[1])[:, None]
    pairs = _pairs(states, objects, steps, np.zeros((*states.shape[:2], 1))).touching()
    at = pairs.drive, pairs.step
    moving = np.hypot(states[..., car.SPEED_X], states[..., car.SPEED_Y])[at] > STOPPED_MPS
    outside = (where.several_lanes | where.off_road)[at]
    _, behind = pairs.bearing()
    fault = moving & (objects.stopped[pairs.thing] | (~behind & (pairs.front() | outside)))
    return _counted(pairs, fault, (*states.shape[:2], len(objects)))


def would_meet(states: np.ndarray, where: Where, objects: Objects) -> np.ndarray:
    """Objects that the car would meet by driving straight on for 0, 0.3, 0.6 or 0.9 s from each step: (N, 41, O).

    `where` may be of more drives than the N.
    """
    speed = np.hypot(states[..., car.SPEED_X], states[..., car.SPEED_Y])
    ahead = speed[..., None] * (LOOK_AHEAD * car.STEP_S)
    ahead[speed < TTC_STOPPED_MPS] = np.nan  # such steps are skipped: nothing is near NaN
    steps = np.arange(states.shape[1])[:, None] + LOOK_AHEAD
    pairs = _pairs(states, objects, steps, ahead).touching()
    front, behind = pairs.bearing()
    loose = (where.several_lanes | where.off_road | where.axle_in_intersection)[pairs.drive, pairs.step]
    return _counted(pairs, front | (loose & ~behind), (*states.shape[:2], len(objects)))


def _counted(pairs: Pairs, event: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Events (N, 41, O) of touching pairs that come before the first contact of the same object that is none."""
    order = pairs.step * len(LOOK_AHEAD) + pairs.look
    put_aside = np.full((shape[0], shape[2]), np.iinfo(int).max)
    np.minimum.at(put_aside, (pairs.drive[~event], pairs.thing[~event]), order[~event])
    counts = event & (order < put_aside[pairs.drive, pairs.thing])
    events = np.zeros(shape, dtype=bool)
    events[pairs.drive[counts], pairs.step[counts], pairs.thing[counts]] = True
    return events


def no_collision_score(faults: np.ndarray, agent: np.ndarray) -> np.ndarray:
    """1 without a fault (N, 41, O), 0.5 with a static object, 0 with an agent (O,): (N,)."""
    hit = faults.any(axis=1)
    return np.where(hit, np.where(agent, 0.0, STATIC_SCORE), 1.0).min(axis=1, initial=1.0)


def first_step(events: np.ndarray) -> np.ndarray:
    """First step (N,) with any event (N, 41, O), -1 for none."""
    flags = np.logical_or.reduce(events, axis=2)
    return np.where(flags.any(axis=1), flags.argmax(axis=1), -1)


def _pairs(states: np.ndarray, objects: Objects, steps: np.ndarray, ahead: np.ndarray) -> Pairs:
    """Pairs of the car's boxes at states (N, T, 11), moved on by `ahead` (N, T, K), and objects at steps (T, K), whose
    circles touch.
    """
    heading = states[..., car.HEADING]
    cos, sin = np.cos(heading), np.sin(heading)
    forward = ahead + car.REAR_AXLE_TO_CENTRE_M
    centre_x, centre_y = (states[..., [i]] + forward * turn[..., None] for i, turn in ((car.X, cos), (car.Y, sin)))
    pose = objects.poses[:, steps].transpose(1, 2, 3, 0)  # (T, K, 3, O)
    dx, dy = pose[:, :, 0] - centre_x[..., None], pose[:, :, 1] - centre_y[..., None]  # (N, T, K, O)
    reach = (np.hypot(*car.HALF_SIZE_M) + np.hypot(*objects.half.T) + MARGIN_M) ** 2
    drive, step, look, thing = index = np.nonzero(dx * dx + dy * dy <= reach)
    dx, dy, cos, sin = dx[index], dy[index], cos[drive, step], sin[drive, step]
    turned = pose[step, look, car.HEADING, thing] - heading[drive, step]
    x, y = dx * cos + dy * sin, dy * cos - dx * sin
    half, moved = objects.half[thing], ahead[drive, step, look]
    return Pairs(drive, step, look, thing, x, y, np.cos(turned), np.sin(turned), half, moved)
