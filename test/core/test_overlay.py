"""The overlay: left is left, near is low, and the picture that came in stays untouched."""

import math

import numpy as np
import pytest

from wamdiff2_core.overlay import overlay, project
from wamdiff2_core.scene import Box, Camera

FRONT = Camera("cam_front", 640, 384, 70.0, (2.2, 0.0, 1.6))


def test_left_is_left_and_straight_ahead_is_the_middle():
    pixels, ahead = project(np.array([[20.0, 0.0, 1.6], [20.0, 3.0, 0.0], [20.0, -3.0, 0.0], [-5.0, 0.0, 0.0]]), FRONT)
    assert ahead.tolist() == [True, True, True, False]
    assert pixels[0] == pytest.approx([320.0, 192.0])
    assert pixels[1][0] < 320 < pixels[2][0]
    assert pixels[1][1] > 192  # the ground lies below the horizon


def test_a_camera_turned_left_sees_the_left():
    left = Camera("cam_front_left", 320, 192, 70.0, (0.0, 0.0, 1.6), yaw=math.radians(55))
    direction = np.array([[10 * math.cos(math.radians(55)), 10 * math.sin(math.radians(55)), 1.6]])
    assert project(direction, left)[0][0] == pytest.approx([160.0, 96.0])


def test_pitch_looks_down():
    down = Camera("cam", 640, 384, 70.0, (0.0, 0.0, 1.0), pitch=math.radians(10))
    on_axis = np.array([[1.0 / math.tan(math.radians(10)), 0.0, 0.0]])
    assert project(on_axis, down)[0][0] == pytest.approx([320.0, 192.0])


def test_overlay_draws_on_a_copy_on_the_right_side():
    image = np.zeros((384, 640, 3), np.uint8)
    plan = np.stack([np.linspace(4, 32, 8), np.linspace(0.5, 8, 8)], axis=1)
    picture = overlay(image, FRONT, plan, [Box("car", (600, 400, 700, 500))], ["speed 5.0 m/s"])
    assert image.max() == 0
    green = (picture[192:, :, 1] > 60) & (picture[192:, :, 0] < 60)
    assert green[:, :300].sum() > 10 * max(1, green[:, 340:].sum())
    assert picture[:40].max() > 200  # the text line
    still = overlay(image, FRONT, np.zeros((8, 2)))
    assert still.shape == image.shape
