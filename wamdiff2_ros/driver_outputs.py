"""Publishers of the driver node: an Outcome becomes messages on ~/output/... (or ~/debug/... in a dry run)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from nav_msgs.msg import Path
from sensor_msgs.msg import CompressedImage
from visualization_msgs.msg import MarkerArray

from wamdiff2.msg import Answer, Boxes, Candidates, Stats, Trajectory
from wamdiff2_core.overlay import overlay
from wamdiff2_core.scene import Answer as CoreAnswer
from wamdiff2_core.scene import Camera, Detections, EgoState, Failure, FailureKind, Plan
from wamdiff2_core.trajectory import Trajectory as SmoothTrajectory
from wamdiff2_core.trajectory import TrajectoryLimits, smooth_trajectory, stopping_trajectory
from wamdiff2_ros import conversions as cv
from wamdiff2_ros import markers, plan_messages
from wamdiff2_ros.compensation import moved_on, pose_at
from wamdiff2_ros.health import Health
from wamdiff2_ros.images import fill_compressed
from wamdiff2_ros.odometry import OdometryHistory
from wamdiff2_ros.parameters import Settings
from wamdiff2_ros.qos import OUTPUT
from wamdiff2_ros.stages import NAMES
from wamdiff2_ros.twins import Twins
from wamdiff2_ros.worker import Outcome

OVERLAY_QUALITY = 80
MARKERS_LAST_S = 1.5
KINDS: dict[str, Any] = {
    "trajectory": Trajectory,
    "path": Path,
    "boxes": Boxes,
    "answer": Answer,
    "candidates": Candidates,
    "stats": Stats,
    "overlay/compressed": CompressedImage,
    "markers": MarkerArray,
}
Saying = tuple[Any, Any]  # a publisher and what it shall publish


def output_prefix(settings: Settings) -> str:
    """Where outputs are published: in a dry run nothing is, that a follower listens to."""
    return "~/debug" if settings.dry_run else "~/output"


def limits_of(settings: Settings) -> TrajectoryLimits:
    return TrajectoryLimits(
        max_acceleration_mps2=settings.max_acceleration_mps2,
        max_deceleration_mps2=settings.max_deceleration_mps2,
        max_jerk_mps3=settings.max_jerk_mps3,
        max_curvature_1pm=settings.max_curvature_1pm,
    )


class Outputs:
    """Creates the publishers on a node, and publishes. Called from the worker, the node's timers and the watchdog."""

    def __init__(
        self,
        node: Any,
        health: Health,
        camera: Camera | None,
        about: dict[str, str],
        settings: Settings,
        now_s: Callable[[], float],
    ) -> None:
        """`camera`: the first camera, for overlay and markers (None: none). `about`: kernels, device, checkpoint.

        `now_s`: the node's clock. Raises ConfigError for a twin without its package.
        """
        self.health = health
        self.planned: Callable[[float], None] = lambda captured_s: None  # the watchdog's ear, while active
        self.times_stale: Callable[[], int] = lambda: 0
        self.inputs_refused: Callable[[], int] = lambda: 0
        self.odometry: OdometryHistory | None = None
        self._camera, self._about, self._now_s = camera, about, now_s
        prefix = output_prefix(settings)
        self._twins = Twins(node, settings, prefix, OUTPUT)
        self._to = {
            name: node.create_lifecycle_publisher(kind, f"{prefix}/{name}", OUTPUT) for name, kind in KINDS.items()
        }
        self._last: dict[str, tuple[Any, Any]] = {}  # (stamp, result) by task, for the overlay

    def all(self) -> list[Any]:
        return [*self._to.values(), *self._twins.all()]

    def publish(self, outcome: Outcome, dropped: int) -> None:
        """Publish what was answered, the plan first: it is what the car waits for. Stats come last, and tell it all."""
        self._last |= {task: (outcome.stamp, result) for task, result in outcome.results.items()}
        stages, overhead_ms, begun_s = outcome.stages, 0.0, time.monotonic()
        for index, (publisher, message) in enumerate(self._said(outcome)):
            made_s = time.monotonic()
            publisher.publish(message)
            if index == 0:
                done_s = time.monotonic()
                convert_ms, publish_ms = (made_s - begun_s) * 1e3, (done_s - made_s) * 1e3
                stages = replace(stages, convert_ms=convert_ms, publish_ms=publish_ms)
                overhead_ms = stages.overhead_ms(done_s)
        message = self._stats(replace(outcome, stages=stages), dropped)
        message.overhead_ms = float(overhead_ms)
        self._to["stats"].publish(message)
        overlay_to = self._to["overlay/compressed"]
        if outcome.settings.overlay and self._camera is not None and overlay_to.get_subscription_count():
            self._publish_overlay(outcome, self._camera)

    def publish_no_plan(self, message: str, stamp: cv.Stamp, instruction: str) -> None:
        """Say that there is no plan because of the input, so that nobody goes on with the last one."""
        failure = Failure(FailureKind.INPUT, message)
        said = cv.failed_trajectory(failure, stamp, instruction)
        self._to["trajectory"].publish(said)
        self._twins.trajectory(said)
        self._to["path"].publish(cv.empty_path(stamp))

    def publish_stop(self, why: str, stamp: cv.Stamp, instruction: str, ego: EgoState, settings: Settings) -> None:
        """Brake to a stand along the curvature that the car has now; `ego` without motion: stand at once."""
        limits = limits_of(settings)
        curvature = ego.yaw_rate / max(ego.speed, 1.0)
        most = limits.max_curvature_1pm
        braking = min(settings.stop_deceleration_mps2, settings.max_deceleration_mps2)
        smooth = stopping_trajectory(ego.speed, min(max(curvature, -most), most), braking, limits)
        said = plan_messages.stop_trajectory(smooth, stamp, instruction, why)
        self._to["trajectory"].publish(said)
        self._twins.trajectory(said)
        self._to["path"].publish(cv.empty_path(stamp))
        if self._marked(settings):
            self._to["markers"].publish(markers.stop_markers(stamp, smooth, MARKERS_LAST_S))

    def _said(self, outcome: Outcome) -> Iterator[Saying]:
        """Publishers and messages in order, each made when it is its turn."""
        results = outcome.results
        if "plan" in results:
            yield from self._plan(results["plan"], outcome)
        if "detect" in results:
            yield from self._boxes(results["detect"], outcome)
        if "ask" in results:
            answer = results["ask"]
            assert isinstance(answer, (CoreAnswer, Failure))
            yield self._to["answer"], cv.answer_message(answer, outcome.question or "", outcome.stamp)
        if outcome.drawn is not None:
            drawn = outcome.drawn
            yield (
                self._to["candidates"],
                plan_messages.candidates_message(drawn.plans, drawn.withheld, drawn.temperature, outcome.stamp),
            )
            if self._marked(outcome.settings):
                marked = markers.candidate_markers(outcome.stamp, drawn.plans, MARKERS_LAST_S)
                yield self._to["markers"], marked

    def _plan(self, plan: Any, outcome: Outcome) -> Iterator[Saying]:
        stamp, found = outcome.stamp, outcome.contradictions
        smooth = None
        if isinstance(plan, Failure):
            said = cv.failed_trajectory(plan, stamp, outcome.instruction, found)
        else:
            smooth = smooth_trajectory(plan.points, outcome.ego.speed, limits_of(outcome.settings))
            moved, seconds = self._compensated(smooth, outcome)
            said = cv.trajectory_message(plan, moved, stamp, outcome.instruction, found, seconds)
        yield self._to["trajectory"], said
        if smooth is not None:
            self.planned(outcome.captured_s)
        self._twins.trajectory(said)
        path = cv.empty_path(stamp) if isinstance(plan, Failure) else cv.path_message(plan.points, stamp)
        yield self._to["path"], path
        if self._marked(outcome.settings):
            yield self._to["markers"], markers.plan_markers(stamp, plan, smooth, MARKERS_LAST_S)

    def _compensated(self, smooth: SmoothTrajectory, outcome: Outcome) -> tuple[SmoothTrajectory, float]:
        """The trajectory moved on to now, and by how many seconds; as it is, and 0, where odometry cannot tell."""
        odometry = self.odometry
        newest = odometry.newest() if odometry is not None and outcome.settings.compensate_delay else None
        if odometry is None or newest is None:
            return smooth, 0.0
        stamp_s = cv.stamp_seconds(outcome.stamp)
        seconds = self._now_s() - stamp_s
        until_s = stamp_s + seconds
        then = odometry.at(stamp_s)
        now = odometry.at(until_s) if until_s <= newest.stamp_s else pose_at(newest, until_s)
        if seconds <= 0.0 or then is None or now is None:
            return smooth, 0.0
        moved = moved_on(smooth, then, now, seconds)
        return (smooth, 0.0) if moved is None else (moved, seconds)

    def _boxes(self, found: Any, outcome: Outcome) -> Iterator[Saying]:
        camera = outcome.settings.cameras[0]
        height, width = outcome.images[camera].shape[:2] if camera in outcome.images else (0, 0)
        if isinstance(found, Detections):  # the model's word for the camera it looks ahead with
            found = replace(found, boxes=tuple(replace(box, camera=camera) for box in found.boxes))
        message = cv.boxes_message(found, outcome.stamp, camera, width, height)
        yield self._to["boxes"], message
        self._twins.boxes(message)
        if isinstance(found, Detections) and self._marked(outcome.settings):
            marked = markers.box_markers(outcome.stamp, found.boxes, self._camera, MARKERS_LAST_S)
            yield self._to["markers"], marked

    def _marked(self, settings: Settings) -> bool:
        return settings.markers and self._to["markers"].get_subscription_count() > 0

    def _publish_overlay(self, outcome: Outcome, camera: Camera) -> None:
        if camera.name not in outcome.images:
            return
        now = {task: result for task, (stamp, result) in self._last.items() if stamp == outcome.stamp}
        plan, found = now.get("plan"), now.get("detect")
        lines = [
            f"{outcome.instruction}   {outcome.ego.speed:.1f} m/s",
            f"B={outcome.settings.block_size}   {outcome.total_ms:.0f} ms",
        ]
        if isinstance(plan, Failure):
            lines.append(f"no plan: {plan.kind.value}")
        lines += [f"contradiction: {sentence}" for sentence in outcome.contradictions]
        picture = overlay(
            outcome.images[camera.name],
            camera,
            plan.points if isinstance(plan, Plan) else None,
            found.boxes if isinstance(found, Detections) else (),
            lines,
        )
        message = fill_compressed(
            CompressedImage(), cv.header(outcome.stamp, cv.optical_frame(camera.name)), picture, OVERLAY_QUALITY
        )
        self._to["overlay/compressed"].publish(message)

    def _stats(self, outcome: Outcome, dropped: int) -> Stats:
        settings = outcome.settings
        message = Stats(
            header=cv.header(outcome.stamp, cv.BASE_FRAME),
            block_size=settings.block_size,
            steps=settings.steps,
            rule=settings.rule,
            threshold=float(settings.threshold),
            deadline_ms=float(settings.deadline_ms),
            deadline_choice=outcome.deadline,
            deadline_missed=outcome.deadline_missed,
            tasks=list(outcome.tasks),
            total_ms=float(outcome.total_ms),
            frame_age_ms=float(outcome.frame_age_ms),
            plan_hz=float(self.health.plan_hz()),
            plans=self.health.plans,
            frames_dropped=dropped,
            inputs_refused=self.inputs_refused(),
            degraded=[f"{topic}: {why}" for topic, why in outcome.degraded.items()],
            contradictions=self.health.contradictions,
            stale=self.times_stale(),
            **self._about,
        )
        for name in NAMES:
            setattr(message, name, float(getattr(outcome.stages, name)))
        drawn = () if outcome.drawn is None else outcome.drawn.plans
        cv.fill_cost(message, [result.cost for result in (*outcome.results.values(), *drawn)])
        return cv.fill_failures(message, self.health.failure_counts())
