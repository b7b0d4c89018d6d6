"""No at-fault collision and time to collision, over all plans, steps and objects at once.

Both metrics walk through the steps in order; a contact that is not the car's fault puts the object aside from then on.
So what counts is whether a contact at fault comes before the first one that is not: no loop is needed.
Source of the rules: nuPlan's at-fault collision and time-to-collision metrics as NAVSIM scores them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.areas import Where
from wamdiff2_core.evaluate.navsim.geometry import boxes_touch
from wamdiff2_core.evaluate.navsim.scene import STOPPED_MPS, Objects

AHEAD_COS, BEHIND_COS = np.cos(np.radians(30.0)), np.cos(np.radians(150.0))
LOOK_AHEAD = np.array([0, 3, 6, 9])  # steps of 0.1 s
TTC_STOPPED_MPS = 0.005
STATIC_SCORE = 0.5
Touch = Callable[[np.ndarray, np.ndarray], np.ndarray]


def touched_at_start(start: np.ndarray, objects: Objects) -> np.ndarray:
    """Objects (O,) that overlap the car in its start state (11,)."""
    ahead, touch = _relative(start[None, None], objects, np.zeros((1, 1), dtype=int), np.zeros((1, 1, 1)))
    return touch(ahead, car.HALF_SIZE_M)[0, 0, 0]


def near(states: np.ndarray, objects: Objects) -> Objects:
    """Objects that come near any of the states (N, 41, 11) or their projections at any time."""
    reach = np.hypot(*car.HALF_SIZE_M) + car.REAR_AXLE_TO_CENTRE_M + np.hypot(*objects.half.T)
    reach += np.abs(states[..., car.SPEED_X]).max() * LOOK_AHEAD[-1] * car.STEP_S
    low, high = states[..., :2].min(axis=(0, 1)), states[..., :2].max(axis=(0, 1))
    position = objects.poses[..., :2]
    inside = (position >= (low - reach[:, None])[:, None]) & (position <= (high + reach[:, None])[:, None])
    return objects.only(inside.all(axis=2).any(axis=1))


def at_fault(states: np.ndarray, where: Where, objects: Objects) -> np.ndarray:
    """Contacts (N, 41, O) at each step that are the car's fault: front, or with a standing object, or from the side
    while in several lanes or off the road; never while the car stands.
    """
    steps = np.arange(states.shape[1])[:, None]
    offset, touch = _relative(states, objects, steps, np.zeros((*states.shape[:2], 1)))
    contact = touch(offset, car.HALF_SIZE_M)[:, :, 0]
    if not contact.any():
        return contact
    bumper = offset - np.array([car.HALF_SIZE_M[0], 0.0])
    front = touch(bumper, np.array([0.0, car.HALF_SIZE_M[1]]))[:, :, 0]
    _, behind = _bearing(offset[:, :, 0])
    moving = np.hypot(states[..., car.SPEED_X], states[..., car.SPEED_Y])[..., None] > STOPPED_MPS
    outside = (where.several_lanes | where.off_road)[..., None]
    fault = moving & (objects.stopped | (~behind & (front | outside)))
    return _before_first(contact & fault, contact & ~fault)


def would_meet(states: np.ndarray, where: Where, objects: Objects) -> np.ndarray:
    """Objects that the car would meet by driving straight on for 0, 0.3, 0.6 or 0.9 s from each step: (N, 41, O).

    `where` may be of more drives than the N.
    """
    speed = np.hypot(states[..., car.SPEED_X], states[..., car.SPEED_Y])
    ahead = speed[..., None] * (LOOK_AHEAD * car.STEP_S)
    steps = np.arange(states.shape[1])[:, None] + LOOK_AHEAD
    offset, touch = _relative(states, objects, steps, ahead)
    contact = touch(offset, car.HALF_SIZE_M) & (speed >= TTC_STOPPED_MPS)[..., None, None]
    if not contact.any():
        return contact[:, :, 0]
    offset[..., 0] += ahead[..., None]  # seen from where the car is, not from its projection
    front, behind = _bearing(offset)
    loose = (where.several_lanes | where.off_road | where.axle_in_intersection)[: len(states), :, None, None]
    fails = front | (loose & ~behind)
    flat = (len(states), -1, len(objects))
    counts = _before_first((contact & fails).reshape(flat), (contact & ~fails).reshape(flat))
    return np.logical_or.reduce(counts.reshape(contact.shape), axis=2)


def no_collision_score(faults: np.ndarray, agent: np.ndarray) -> np.ndarray:
    """1 without a fault (N, 41, O), 0.5 with a static object, 0 with an agent (O,): (N,)."""
    hit = faults.any(axis=1)
    return np.where(hit, np.where(agent, 0.0, STATIC_SCORE), 1.0).min(axis=1, initial=1.0)


def first_step(events: np.ndarray) -> np.ndarray:
    """First step (N,) with any event (N, 41, O), -1 for none."""
    flags = np.logical_or.reduce(events, axis=2)
    return np.where(flags.any(axis=1), flags.argmax(axis=1), -1)


def _relative(states: np.ndarray, objects: Objects, steps: np.ndarray, ahead: np.ndarray) -> tuple[np.ndarray, Touch]:
    """Offsets (N, T, K, O, 2) of object centres at steps (T, K) from the car's centres moved on by `ahead` (N, T, K),
    in the car's frame, and a function that tells which boxes touch for such offsets and a half size.
    """
    pose = objects.poses[:, steps].transpose(1, 2, 0, 3)  # (T, K, O, 3)
    heading = states[..., car.HEADING]
    cos, sin = np.cos(heading)[..., None, None], np.sin(heading)[..., None, None]
    dx = pose[..., 0] - states[..., car.X][..., None, None]
    dy = pose[..., 1] - states[..., car.Y][..., None, None]
    x = dx * cos + dy * sin - (car.REAR_AXLE_TO_CENTRE_M + ahead)[..., None]
    offset = np.stack([x, dy * cos - dx * sin], axis=-1)
    object_cos, object_sin = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    relative_cos = object_cos * cos + object_sin * sin
    relative_sin = object_sin * cos - object_cos * sin

    def touch(at: np.ndarray, half: np.ndarray) -> np.ndarray:
        return boxes_touch(at, relative_cos, relative_sin, half, objects.half)

    return offset, touch


def _bearing(offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seen from the rear axle, whether objects at offsets (..., 2) from the car's centre are within 30 degrees of the
    heading, and whether they are more than 150 degrees off it.
    """
    x = offset[..., 0] + car.REAR_AXLE_TO_CENTRE_M
    distance = np.hypot(x, offset[..., 1])
    return x > AHEAD_COS * distance, x < BEHIND_COS * distance


def _before_first(event: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Events (N, S, O) that come before the first `ends` along S."""
    return event & ~np.logical_or.accumulate(ends, axis=1)
