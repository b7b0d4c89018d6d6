"""From a WeatherSpec to colours and strengths for the shaders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wamdiff2_sim.types import WeatherSpec

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Look:
    """What the shaders need to know of the weather; colours RGB in display space."""

    sun: Colour  # unit vector towards the sun
    sun_colour: Colour
    sky_light: Colour
    ground_light: Colour
    horizon: Colour
    zenith: Colour
    cloud: tuple[float, float, float, float]  # colour, threshold of coverage
    glow: Colour
    fog: float  # per metre, base 2
    wet: float
    rain: float
    night: bool
    shadow: float  # darkness under things
    shadow_shift: tuple[float, float]  # m per m of height
    switches: tuple[str, ...]


def look_of(weather: WeatherSpec) -> Look:
    """Colours of the sky, the light and the fog.

    The sun stands at `sun_azimuth` (map frame, from +x counter-clockwise).
    """
    elevation = max(weather.sun_elevation, 0.03) if not weather.night else 0.7
    sun = np.array(
        [
            np.cos(elevation) * np.cos(weather.sun_azimuth),
            np.cos(elevation) * np.sin(weather.sun_azimuth),
            np.sin(elevation),
        ]
    )
    colours = _night(weather) if weather.night else _day(weather)
    direct = (1.0 - 0.95 * min(weather.cloud * 1.25, 1.0)) * (1.0 - min(weather.fog * 1.5, 1.0))
    reach = min(1.0 / np.tan(elevation), 2.5) if not weather.night else 0.0
    return Look(
        sun=tuple(sun), **{name: tuple(value) for name, value in colours.items()},
        fog=0.0010 + 0.085 * weather.fog**1.5 + 0.005 * weather.rain,
        wet=weather.wetness, rain=weather.rain, night=weather.night,
        shadow=0.5 if weather.night else 0.45 + 0.3 * direct,
        shadow_shift=tuple(-sun[:2] / max(np.hypot(*sun[:2]), 1e-6) * reach * direct),
        switches=(("NIGHT",) if weather.night else ()) + (("WET",) if weather.wetness > 0.02 else ()),
    )  # fmt: skip


def _day(weather: WeatherSpec) -> dict[str, np.ndarray]:
    height = np.clip(weather.sun_elevation / 0.7, 0.0, 1.0)
    grey = min(weather.cloud * 1.15, 1.0) ** 1.5
    warm = _mix([1.0, 0.60, 0.34], [1.0, 0.96, 0.88], height**0.6)
    haze = min(weather.fog * 1.4, 1.0)
    dim = 1.0 - 0.38 * weather.rain
    horizon = _mix(_mix([0.86, 0.72, 0.60], [0.74, 0.84, 0.94], height), [0.70, 0.72, 0.74], grey)
    zenith = _mix(_mix([0.34, 0.46, 0.68], [0.26, 0.47, 0.80], height), [0.55, 0.58, 0.62], grey)
    horizon = _mix(horizon, [0.76, 0.78, 0.80], haze) * dim
    zenith = _mix(zenith, [0.74, 0.76, 0.79], haze) * dim
    direct = (1.0 - 0.92 * grey) * (1.0 - 0.8 * haze)
    brightness = 0.68 + 0.32 * height
    return {
        "sun_colour": warm * 0.85 * direct * (0.7 + 0.3 * height),
        "sky_light": _mix([0.66, 0.74, 0.86], [0.80, 0.81, 0.83], grey)
        * (0.66 + 0.40 * grey)
        * brightness
        * (1.0 - 0.25 * weather.rain),
        "ground_light": np.array([0.44, 0.42, 0.39]) * (0.85 + 0.35 * grey) * brightness * (1.0 - 0.25 * weather.rain),
        "horizon": horizon,
        "zenith": zenith,
        "cloud": np.array(
            [
                *(_mix(_mix([1.0, 0.86, 0.76], [0.98, 0.98, 0.98], height), [0.64, 0.66, 0.69], grey) * dim),
                0.95 - 0.75 * weather.cloud,
            ]
        ),
        "glow": warm * (1.0 - grey) * (1.0 - haze),
    }


def _night(weather: WeatherSpec) -> dict[str, np.ndarray]:
    haze = min(weather.fog * 1.4 + 0.4 * weather.cloud, 1.0)
    horizon = _mix([0.075, 0.085, 0.12], [0.12, 0.115, 0.12], haze)
    return {
        "sun_colour": np.array([0.05, 0.06, 0.09]),
        "sky_light": np.array([0.12, 0.135, 0.18]),
        "ground_light": np.array([0.08, 0.08, 0.09]),
        "horizon": horizon,
        "zenith": _mix([0.015, 0.02, 0.045], [0.06, 0.06, 0.07], haze),
        "cloud": np.array([0.09, 0.09, 0.105, 0.95 - 0.75 * weather.cloud]),
        "glow": np.array([0.05, 0.05, 0.06]),
    }


def _mix(a, b, t: float) -> np.ndarray:
    return np.asarray(a, float) * (1.0 - t) + np.asarray(b, float) * t
