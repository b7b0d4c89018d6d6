"""Publishers of the driver node: an Outcome becomes messages on ~/output/..."""

from __future__ import annotations

from typing import Any

from nav_msgs.msg import Path
from sensor_msgs.msg import CompressedImage

from wamdiff2.msg import Answer, Boxes, Stats, Trajectory
from wamdiff2_core.overlay import overlay
from wamdiff2_core.scene import Answer as CoreAnswer
from wamdiff2_core.scene import Camera, Detections, Failure, FailureKind, Plan
from wamdiff2_core.trajectory import smooth_trajectory
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.health import Health
from wamdiff2_ros.images import fill_compressed
from wamdiff2_ros.qos import OUTPUT
from wamdiff2_ros.worker import Outcome

OVERLAY_QUALITY = 80


class Outputs:
    """Creates the publishers on a node, and publishes. Called from the worker thread and the watchdog."""

    def __init__(self, node: Any, health: Health, camera: Camera | None, about: dict[str, str]) -> None:
        """`camera`: the first camera, for the overlay (None: no overlay). `about`: kernels, device, checkpoint."""
        self.health = health
        self._camera = camera
        self._about = about
        self.trajectory = node.create_lifecycle_publisher(Trajectory, "~/output/trajectory", OUTPUT)
        self.path = node.create_lifecycle_publisher(Path, "~/output/path", OUTPUT)
        self.boxes = node.create_lifecycle_publisher(Boxes, "~/output/boxes", OUTPUT)
        self.answer = node.create_lifecycle_publisher(Answer, "~/output/answer", OUTPUT)
        self.stats = node.create_lifecycle_publisher(Stats, "~/output/stats", OUTPUT)
        self.overlay = node.create_lifecycle_publisher(CompressedImage, "~/output/overlay/compressed", OUTPUT)
        self._last: dict[str, tuple[Any, Any]] = {}  # (stamp, result) by task, for the overlay

    def all(self) -> list[Any]:
        return [self.trajectory, self.path, self.boxes, self.answer, self.stats, self.overlay]

    def publish(self, outcome: Outcome, dropped: int) -> None:
        """Publish what was answered, the plan first: it is what the car waits for."""
        results = outcome.results
        self._last |= {task: (outcome.stamp, result) for task, result in results.items()}
        if "plan" in results:
            self._publish_plan(results["plan"], outcome)
        if "detect" in results:
            self._publish_boxes(results["detect"], outcome)
        if "ask" in results:
            answer = results["ask"]
            assert isinstance(answer, (CoreAnswer, Failure))
            self.answer.publish(cv.answer_message(answer, outcome.question or "", outcome.stamp))
        self.stats.publish(self._stats(outcome, dropped))
        if outcome.settings.overlay and self._camera is not None and self.overlay.get_subscription_count():
            self._publish_overlay(outcome, self._camera)

    def publish_no_plan(self, message: str, stamp: cv.Stamp, instruction: str) -> None:
        """Say that there is no plan because of the input, so that nobody goes on with the last one."""
        failure = Failure(FailureKind.INPUT, message)
        self.trajectory.publish(cv.failed_trajectory(failure, stamp, instruction))
        self.path.publish(cv.empty_path(stamp))

    def _publish_plan(self, plan: Any, outcome: Outcome) -> None:
        if isinstance(plan, Failure):
            self.trajectory.publish(cv.failed_trajectory(plan, outcome.stamp, outcome.instruction))
            self.path.publish(cv.empty_path(outcome.stamp))
            return
        smooth = smooth_trajectory(plan.points, outcome.ego.speed)
        self.trajectory.publish(cv.trajectory_message(plan, smooth, outcome.stamp, outcome.instruction))
        self.path.publish(cv.path_message(plan.points, outcome.stamp))

    def _publish_boxes(self, found: Any, outcome: Outcome) -> None:
        camera = outcome.settings.cameras[0]
        height, width = outcome.images[camera].shape[:2] if camera in outcome.images else (0, 0)
        self.boxes.publish(cv.boxes_message(found, outcome.stamp, camera, width, height))

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
        self.overlay.publish(message)

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
            **self._about,
        )
        cv.fill_cost(message, [result.cost for result in outcome.results.values()])
        return cv.fill_failures(message, self.health.failure_counts())
