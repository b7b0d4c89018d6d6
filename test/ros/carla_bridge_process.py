"""The bridge as a process, on a stand-in server inside it; run by the tests with `python -m`."""

from __future__ import annotations

import sys

from carla_stand_in import StandInServer, stand_in

from wamdiff2_ros.carla_bridge_node import CarlaBridgeNode
from wamdiff2_ros.process import run_node


class ReportingNode(CarlaBridgeNode):
    """Says at its end what the server holds then."""

    def close(self) -> None:
        ego = SERVER.named("hero")
        moved_m = abs(ego[0].y - SERVER.spawn_points[0].location.y) if ego else 0.0
        super().close()
        actors, synchronous = len(SERVER.actors), SERVER.settings.synchronous_mode
        print(f"moved {moved_m:.1f} m; left behind: {actors} actors, synchronous {synchronous}", flush=True)


SERVER = StandInServer()

if __name__ == "__main__":
    sys.exit(run_node(lambda: ReportingNode(stand_in(SERVER))))
