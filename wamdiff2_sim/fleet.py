"""The other vehicles as arrays: one row per vehicle slot, kinds and sizes drawn once, places updated by `Traffic`."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

CAR, TRUCK, CYCLIST = 0, 1, 2
KIND_NAMES = ("car", "truck", "cyclist")
KIND_SHARES = (0.78, 0.12, 0.10)
QUEUE = 7  # lanes ahead that a vehicle has decided on, its current one included
FAR_M = 1.0e7

# Car paint: common colours, RGB 0..1.
PAINTS = np.array(
    [
        *([0.92, 0.92, 0.92], [0.08, 0.08, 0.09], [0.45, 0.46, 0.48], [0.66, 0.67, 0.69]),
        *([0.62, 0.07, 0.08], [0.09, 0.17, 0.42], [0.16, 0.36, 0.58], [0.13, 0.30, 0.18]),
        *([0.70, 0.55, 0.16], [0.42, 0.26, 0.16], [0.85, 0.42, 0.10], [0.78, 0.74, 0.62]),
    ]
)


@dataclass
class Fleet:
    """State of N vehicle slots. `lane` and `path` are LaneGraph indices (-1: none); `s` is the middle of the
    vehicle."""

    kind: np.ndarray  # (N,) CAR | TRUCK | CYCLIST
    length: np.ndarray
    width: np.ndarray
    height: np.ndarray
    colour: np.ndarray  # (N, 3)
    temper: np.ndarray  # factor on the speed limit
    headway: np.ndarray  # s
    active: np.ndarray  # bool
    path: np.ndarray  # (N, QUEUE) lanes from the current one on
    cum: np.ndarray  # (N, QUEUE) metres from the current lane's start to each lane's start
    previous: np.ndarray  # lane before the current one
    s: np.ndarray
    speed: np.ndarray
    accel: np.ndarray
    shift: np.ndarray  # lateral place in the lane, left positive
    granted: np.ndarray  # may enter the next junction
    asked_at: np.ndarray  # time of the first request for it, inf before
    still: np.ndarray  # seconds without motion
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    yaw: np.ndarray
    braking: np.ndarray  # bool
    indicator: np.ndarray  # -1 right, 0, +1 left
    serial: np.ndarray  # public id; a recycled vehicle gets a new one

    def __len__(self) -> int:
        return len(self.s)

    @property
    def lane(self) -> np.ndarray:
        return self.path[:, 0]

    def copy(self) -> Fleet:
        return Fleet(*(getattr(self, item.name).copy() for item in fields(self)))


def new_fleet(n: int, rng: np.random.Generator) -> Fleet:
    """N inactive vehicles of mixed kinds."""

    def zeros() -> np.ndarray:
        return np.zeros(n)

    def no() -> np.ndarray:
        return np.zeros(n, dtype=bool)

    fleet = Fleet(
        kind=rng.choice(3, size=n, p=KIND_SHARES), length=zeros(), width=zeros(), height=zeros(),
        colour=np.zeros((n, 3)), temper=zeros(), headway=zeros(), active=no(), path=np.full((n, QUEUE), -1),
        cum=np.zeros((n, QUEUE)), previous=np.full(n, -1), s=zeros(), speed=zeros(), accel=zeros(), shift=zeros(),
        granted=no(), asked_at=np.full(n, np.inf), still=zeros(), x=np.full(n, FAR_M), y=np.full(n, FAR_M), z=zeros(),
        yaw=zeros(), braking=no(), indicator=np.zeros(n, dtype=np.int8), serial=np.zeros(n, dtype=np.int64),
    )  # fmt: skip
    for i in range(n):
        dress(fleet, i, rng)
    return fleet


def dress(fleet: Fleet, i: int, rng: np.random.Generator) -> None:
    """Give slot `i` the size, paint and temper of another vehicle of its kind."""
    low, high = {
        CAR: ((3.8, 1.7, 1.4), (4.9, 1.98, 1.75)),
        TRUCK: ((6.2, 2.3, 2.7), (8.4, 2.5, 3.4)),
        CYCLIST: ((1.7, 0.55, 1.6), (1.85, 0.65, 1.8)),
    }[int(fleet.kind[i])]
    fleet.length[i], fleet.width[i], fleet.height[i] = rng.uniform(low, high)
    shade = rng.normal(0.0, 0.03, size=3)
    fleet.colour[i] = np.clip(PAINTS[rng.integers(len(PAINTS))] + shade, 0.02, 1.0)
    fleet.temper[i] = rng.uniform(0.78, 1.05)
    fleet.headway[i] = rng.uniform(1.0, 1.7)


def remove(fleet: Fleet, i: int) -> None:
    """Take slot `i` off the roads."""
    fleet.active[i] = False
    fleet.path[i], fleet.previous[i] = -1, -1
    fleet.x[i] = fleet.y[i] = FAR_M
    fleet.speed[i] = fleet.accel[i] = fleet.still[i] = 0.0
    fleet.granted[i], fleet.asked_at[i] = False, np.inf
    fleet.braking[i], fleet.indicator[i] = False, 0
