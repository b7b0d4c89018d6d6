"""The bridge as a process, on a stand-in server inside it; run by the tests with `python -m`."""

from __future__ import annotations

import sys
from typing import Any

from carla_stand_in import StandInServer, stand_in
from rclpy.clock import Clock, ClockType

from wamdiff2_ros.carla_bridge_node import CarlaBridgeNode
from wamdiff2_ros.process import run_node


class ReportingNode(CarlaBridgeNode):
    """Says when the car has moved a metre and, at its end, what the server holds then."""

    def __init__(self, carla: Any) -> None:
        super().__init__(carla)
        self._looking = self.create_timer(0.1, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _look(self) -> None:
        if moved_m() > 1.0:
            self._looking.cancel()
            print("under way", flush=True)

    def close(self) -> None:
        moved = moved_m()
        super().close()
        actors, synchronous = len(SERVER.actors), SERVER.settings.synchronous_mode
        print(f"moved {moved:.1f} m; left behind: {actors} actors, synchronous {synchronous}", flush=True)


SERVER = StandInServer()


def moved_m() -> float:
    ego = SERVER.named("hero")
    return abs(ego[0].y - SERVER.spawn_points[0].location.y) if ego else 0.0


if __name__ == "__main__":
    sys.exit(run_node(lambda: ReportingNode(stand_in(SERVER))))
