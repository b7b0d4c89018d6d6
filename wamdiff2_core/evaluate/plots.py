"""The plots of a drive's report, each as a PNG data URI (matplotlib, no display)."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import cv2
import numpy as np

from wamdiff2_core.evaluate.canvas import new_figure, png_uri
from wamdiff2_core.evaluate.record import DriveRecord
from wamdiff2_core.scene import PLAN_STEP_S

INK, BLUE, GREEN, ORANGE, GREY = "#1f2933", "#2f6fde", "#1f9d61", "#e08a1e", "#c3ccd6"


def picture_uri(image: np.ndarray, quality: int = 82) -> str:
    """A data URI of an RGB image (H, W, 3) as JPEG."""
    done, data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError(f"an image of shape {image.shape} could not be encoded")
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()


def route_map(record: DriveRecord) -> str:
    """Lanes around the route, the route itself, the driven path coloured by speed, start and end."""
    figure, axes = new_figure(7.2, 5.4)
    for lane in record.lanes:
        axes.plot(lane[:, 0], lane[:, 1], color=GREY, linewidth=2.4, solid_capstyle="round", zorder=1)
    if len(record.route):
        axes.plot(*record.route[:, :2].T, color=ORANGE, linewidth=5, alpha=0.45, zorder=2, label="route")
    if len(record.track):
        dots = axes.scatter(record.track[:, 1], record.track[:, 2], c=record.track[:, 3], s=7, cmap="viridis", zorder=3)
        figure.colorbar(dots, ax=axes, label="speed in m/s", shrink=0.8)
        for row, text in ((record.track[0], "start"), (record.track[-1], "end")):
            axes.annotate(text, row[1:3], textcoords="offset points", xytext=(6, 6), color=INK, weight="bold")
        _zoom(axes, record)
    axes.set_aspect("equal")
    axes.set_xlabel("x in m (map)")
    axes.set_ylabel("y in m (map)")
    return png_uri(figure)


def waypoint_curve(per_waypoint_m: Sequence[float | None]) -> str:
    """Mean distance to the expert's plan, over the horizon."""
    figure, axes = new_figure(4.7, 3.2)
    seconds = [PLAN_STEP_S * (k + 1) for k in range(len(per_waypoint_m))]
    values = [float("nan") if v is None else v for v in per_waypoint_m]
    axes.plot(seconds, values, "o-", color=BLUE)
    axes.set_xlabel("seconds ahead")
    axes.set_ylabel("mean L2 to the expert in m")
    axes.set_ylim(bottom=0)
    return png_uri(figure)


def latency_histogram(record: DriveRecord) -> str:
    """Latency of every plan, with the median."""
    figure, axes = new_figure(4.7, 3.2)
    values = [p.latency_ms for p in record.plans if p.latency_ms is not None]
    if values:
        axes.hist(values, bins=min(40, max(8, len(values) // 6)), color=BLUE, edgecolor="white")
        axes.axvline(float(np.median(values)), color=ORANGE, label=f"median {np.median(values):.0f} ms")
        axes.legend(frameon=False)
    axes.set_xlabel("latency of a plan in ms")
    axes.set_ylabel("plans")
    return png_uri(figure)


def speed_curve(record: DriveRecord) -> str:
    """Speed over time, with the moments of withheld plans."""
    figure, axes = new_figure(10.6, 2.6)
    if len(record.track):
        start = record.track[0, 0]
        axes.plot(record.track[:, 0] - start, record.track[:, 3], color=GREEN, linewidth=1.6)
        for plan in record.plans:
            if plan.points is None:
                axes.axvline(plan.stamp_s - start, color="#d64545", alpha=0.6, linewidth=1)
    axes.set_xlabel("seconds")
    axes.set_ylabel("speed in m/s")
    axes.set_ylim(bottom=0)
    return png_uri(figure)


def _zoom(axes, record: DriveRecord, margin_m: float = 40.0) -> None:
    shown = record.track[:, 1:3] if not len(record.route) else np.vstack([record.track[:, 1:3], record.route[:, :2]])
    low, high = shown.min(axis=0) - margin_m, shown.max(axis=0) + margin_m
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
