"""What a learned scorer sees of a candidate: its points, how it moves, how sure its tokens were, and what was asked."""

from __future__ import annotations

import re

import numpy as np

from wamdiff2_core.scene import PLAN_STEP_S, Command
from wamdiff2_core.tasks.navigation import parse_navigation

FEATURES = 16 + 4 * 8 + 1 + 16 + 8
_COMMANDS = (Command.LEFT, Command.RIGHT, Command.STRAIGHT, Command.FOLLOW)
_DISTANCE = re.compile(r"in ([0-9]{1,3}) m", re.ASCII)
_STANDS_M = 0.1  # shorter legs have no heading


def features(
    points: np.ndarray, sure: np.ndarray, likelihood: np.ndarray, motion: np.ndarray, asked: np.ndarray
) -> np.ndarray:
    """Features (..., K, FEATURES) float32 of candidates, the plain plan first.

    points (..., K, 8, 2) m, sure (..., K, 8), likelihood (..., K) natural logarithm, motion (..., 3): speed m/s and
    acceleration m/s^2 of the ego, asked (..., 5) of `asked_for`.
    """
    legs = np.diff(points, axis=-2, prepend=0.0)
    speed = np.linalg.norm(legs, axis=-1) / PLAN_STEP_S
    now = np.broadcast_to(motion[..., None, :1], (*speed.shape[:-1], 1))
    gain = np.diff(np.concatenate([now, speed], axis=-1), axis=-1) / PLAN_STEP_S
    heading = np.where(speed * PLAN_STEP_S > _STANDS_M, np.arctan2(legs[..., 1], legs[..., 0]), 0.0)
    beside = (points - points[..., :1, :, :]) / 5.0
    common = np.concatenate([motion / (10.0, 3.0, 3.0), asked], axis=-1)[..., None, :]
    flat = (*points.shape[:-2], 16)
    parts = [
        points.reshape(flat) / 20.0, speed / 10.0, gain / 5.0, heading, sure, likelihood[..., None] / 50.0,
        beside.reshape(flat), np.broadcast_to(common, (*points.shape[:-2], common.shape[-1])),
    ]  # fmt: skip
    return np.concatenate(parts, axis=-1).astype(np.float32)


def asked_for(instruction: str) -> np.ndarray:
    """(5,): which command an instruction is (none of them for other sentences), and how far away in units of 50 m."""
    command, distance = parse_navigation(instruction), _DISTANCE.search(instruction)
    return np.array([*(command is one for one in _COMMANDS), float(distance[1]) / 50.0 if distance else 0.0])
