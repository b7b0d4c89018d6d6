"""From an abstract street network to a RoadMap: lanes, junction turns, lights, crosswalks and hills."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wamdiff2_core.scene import Command
from wamdiff2_sim.roads import curves
from wamdiff2_sim.roads.mapfile import link_predecessors
from wamdiff2_sim.roads.network import Cell, Leg, Network, Node, Road, half_width
from wamdiff2_sim.roads.roadmap import Lane, LightGroup, RoadMap

Height = Callable[[np.ndarray], np.ndarray]
STRAIGHT_BELOW_RAD = 0.61  # a turn of less than 35 degrees counts as going straight
CROSSWALK_M = (1.2, 4.2)  # begin and end of a crosswalk, measured back from the junction's edge
POLE_OFFSET_M = 1.0


def classify_turn(heading_change: float) -> Command:
    """LEFT, RIGHT or STRAIGHT by the change of heading across a junction (radians, left positive)."""
    if abs(heading_change) < STRAIGHT_BELOW_RAD:
        return Command.STRAIGHT
    return Command.LEFT if heading_change > 0 else Command.RIGHT


class _Arm:
    """A leg and its lanes: `inward` end at the junction, `outward` start there; index 0 is next to the middle."""

    def __init__(self, leg: Leg, direction: Cell) -> None:
        self.leg, self.direction = leg, direction
        self.inward: list[Lane] = []
        self.outward: list[Lane] = []


def build(network: Network, name: str, rng: np.random.Generator) -> RoadMap:
    """All parts of the map; `rng` decides marks, lights, crosswalks and hills."""
    road_map = RoadMap(name, {})
    height = _hills(rng) if rng.random() < network.style.hills else _flat
    arms = {c: {d: _Arm(leg, d) for d, leg in node.legs.items()} for c, node in network.nodes.items()}
    sidewalks = bool(rng.random() < network.style.sidewalks)
    for road in network.roads:
        _add_road(road_map, road, network.lane_width, arms, sidewalks, height, rng)
    for number, (cell, node) in enumerate(network.nodes.items()):
        _add_junction(road_map, number, node, list(arms[cell].values()), network, sidewalks, height, rng)
    link_predecessors(road_map.lanes)
    return road_map


def _flat(xy: np.ndarray) -> np.ndarray:
    return np.zeros(len(xy))


def _hills(rng: np.random.Generator) -> Height:
    """A smooth height field with grades below about 6 %."""
    waves = []
    for _ in range(3):
        length, direction = rng.uniform(180, 450), rng.uniform(0, 2 * np.pi)
        waves.append((curves.unit(direction) * 2 * np.pi / length, rng.uniform(0, 6.28), 0.02 * length / (2 * np.pi)))

    def height(xy: np.ndarray) -> np.ndarray:
        return sum((a * np.sin(xy @ k + phase) for k, phase, a in waves), np.zeros(len(xy)))

    return height


def _line(poses: np.ndarray, height: Height) -> np.ndarray:
    points = curves.resample(poses[:, :2])
    return np.column_stack([points, height(points)])


def _add_lane(road_map: RoadMap, **values: object) -> Lane:
    lane = Lane(id=len(road_map.lanes), **values)  # type: ignore[arg-type]
    road_map.lanes[lane.id] = lane
    return lane


def _add_road(
    road_map: RoadMap,
    road: Road,
    width: float,
    arms: dict[Cell, dict[Cell, _Arm]],
    sidewalks: bool,
    height: Height,
    rng: np.random.Generator,
) -> None:
    start, end = arms[road.start[0]][road.start[1]], arms[road.end[0]][road.end[1]]
    middle_mark = "solid_yellow" if road.lanes > 1 or rng.random() < 0.4 else "broken_yellow"
    right_mark = "solid_white" if rng.random() < 0.8 else "none"
    for poses, source, target in ((road.poses, start, end), (curves.reverse(road.poses), end, start)):
        lanes = []
        for i in range(road.lanes):
            lane = _add_lane(
                road_map,
                points=_line(curves.offset(poses, -(road.median / 2.0 + (i + 0.5) * width)), height),
                width=width,
                speed_limit_mps=road.speed_kmh / 3.6,
                left_mark=middle_mark if i == 0 else "broken_white",
                right_mark=right_mark if i == road.lanes - 1 else "broken_white",
                has_sidewalk_right=sidewalks and i == road.lanes - 1,
            )
            lanes.append(lane)
        for left, right in zip(lanes, lanes[1:], strict=False):
            left.right_id, right.left_id = right.id, left.id
        source.outward, target.inward = lanes, lanes


def _add_junction(
    road_map: RoadMap,
    number: int,
    node: Node,
    arms: list[_Arm],
    network: Network,
    sidewalks: bool,
    height: Height,
    rng: np.random.Generator,
) -> None:
    arms = sorted(arms, key=lambda arm: arm.leg.heading)
    road_map.junctions[number] = _outline(node, arms, network.lane_width)
    lit = bool(rng.random() < network.style.lights)
    crosswalks = bool(rng.random() < (0.75 if lit else 0.3))
    for arm in arms:
        for lane, out, turn in _connections(arm, arms):
            _add_turn(road_map, lane, out, turn, number, sidewalks and _is_curbside(lane, out, turn, arms), height)
        for lane in arm.inward:
            if lit or crosswalks or _gives_way(arm, arms):
                lane.stop_s = lane.length - (CROSSWALK_M[1] + 1.0 if crosswalks else 1.0)
        if crosswalks:
            road_map.crosswalks.append(_crosswalk(node, arm, network.lane_width, height))
        if lit:
            _add_lights(road_map, number, node, arm, arms, network.lane_width, height)


def _add_turn(
    road_map: RoadMap, lane: Lane, out: Lane, turn: Command, junction: int, sidewalk: bool, height: Height
) -> None:
    poses = curves.connect(lane.points[-1], lane.headings[-1], out.points[0], out.headings[0])
    points = _line(poses, height)
    points[0], points[-1] = lane.points[-1], out.points[0]
    inner = _add_lane(
        road_map,
        points=points,
        width=lane.width,
        speed_limit_mps=min(lane.speed_limit_mps, out.speed_limit_mps),
        junction_id=junction,
        turn=turn,
        has_sidewalk_right=sidewalk,
    )
    lane.successors.append(inner.id)
    inner.successors.append(out.id)


def _turn_between(arm: _Arm, other: _Arm) -> Command:
    return classify_turn(curves.wrap(other.leg.heading - arm.leg.heading - np.pi))


def _connections(arm: _Arm, arms: list[_Arm]) -> list[tuple[Lane, Lane, Command]]:
    """(inward lane, outward lane, turn) of one approach; left turns start in the left lane, right ones in the right."""
    others = [(other, _turn_between(arm, other)) for other in arms if other is not arm]
    turns = {turn for _, turn in others}
    links: list[tuple[Lane, Lane, Command]] = []
    for other, turn in others:
        if turn is Command.STRAIGHT:
            links += [(a, b, turn) for a, b in _straight_pairs(arm.inward, other.outward, Command.LEFT in turns)]
        else:
            index = 0 if turn is Command.LEFT else -1
            links.append((arm.inward[index], other.outward[index], turn))
    served = {lane.id for lane, _, _ in links}
    for i, lane in enumerate(arm.inward):
        if lane.id not in served:
            other, turn = others[0]
            links.append((lane, other.outward[min(i, len(other.outward) - 1)], turn))
    return links


def _straight_pairs(inward: list[Lane], outward: list[Lane], has_left: bool) -> list[tuple[Lane, Lane]]:
    """Lanes that go straight on. A surplus inward lane becomes a turning lane, on the left if there is a left turn."""
    count = min(len(inward), len(outward))
    sources = inward[len(inward) - count :] if has_left else inward[:count]
    return list(zip(sources, outward[len(outward) - count :], strict=True))


def _is_curbside(lane: Lane, out: Lane, turn: Command, arms: list[_Arm]) -> bool:
    """Whether a junction lane runs along the curb: right turns, and the far side of a T-junction."""
    if lane.right_id >= 0 or out.right_id >= 0 or turn is Command.LEFT:
        return False
    arm = next(a for a in arms if lane in a.inward)
    turns = {_turn_between(arm, other) for other in arms if other is not arm}
    return turn is Command.RIGHT or Command.RIGHT not in turns


def _gives_way(arm: _Arm, arms: list[_Arm]) -> bool:
    """Whether an approach without lights has a stop line: all at a crossing, only the stem of a T-junction."""
    turns = {_turn_between(arm, other) for other in arms if other is not arm}
    return len(arms) > 3 or Command.STRAIGHT not in turns


def _outline(node: Node, arms: list[_Arm], lane_width: float) -> np.ndarray:
    """(N, 2) counter-clockwise junction polygon: mouths joined by curb arcs."""
    points: list[np.ndarray] = []
    for arm, following in zip(arms, arms[1:] + arms[:1], strict=True):
        _, left = _mouth_edges(node, arm, lane_width)
        right_next, _ = _mouth_edges(node, following, lane_width)
        curb = curves.connect(left, arm.leg.heading + np.pi, right_next, following.leg.heading)
        points.append(curves.resample(curb[:, :2]))
    return np.concatenate(points)


def _mouth_edges(node: Node, arm: _Arm, lane_width: float) -> tuple[np.ndarray, np.ndarray]:
    """Right and left curb points of a junction's mouth, looking outward."""
    middle = node.position + arm.leg.mouth * curves.unit(arm.leg.heading)
    left = half_width(arm.leg, lane_width) * curves.unit(arm.leg.heading + np.pi / 2.0)
    return middle - left, middle + left


def _crosswalk(node: Node, arm: _Arm, lane_width: float, height: Height) -> np.ndarray:
    """(4, 3) rectangle across the leg, corners in order around it."""
    along = curves.unit(arm.leg.heading)
    right, left = _mouth_edges(node, arm, lane_width)
    near, far = CROSSWALK_M
    corners = np.array([right + near * along, right + far * along, left + far * along, left + near * along])
    return np.column_stack([corners, height(corners)])


def _add_lights(
    road_map: RoadMap, junction: int, node: Node, arm: _Arm, arms: list[_Arm], lane_width: float, height: Height
) -> None:
    """One group per approach: a head at the near right corner, one across. Opposing legs share a phase."""
    number = len(road_map.light_groups)
    facing = arm.leg.heading
    inward = -curves.unit(facing)
    right = curves.unit(facing + np.pi / 2.0)  # the driver's right-hand side
    _, corner = _mouth_edges(node, arm, lane_width)
    near = corner + POLE_OFFSET_M * right
    opposite = next((a for a in arms if a is not arm and _turn_between(arm, a) is Command.STRAIGHT), None)
    if opposite is not None:
        far = _mouth_edges(node, opposite, lane_width)[0] + POLE_OFFSET_M * right + 0.5 * inward
    else:
        beyond = max(half_width(a.leg, lane_width) for a in arms if a is not arm)
        far = corner - right + (arm.leg.mouth + beyond + 1.5 * POLE_OFFSET_M) * inward
    poles = []
    for xy, z in ((near, 3.2), (far, 4.2)):
        ground = float(height(xy[None])[0])
        poles.append((float(xy[0]), float(xy[1]), ground + z, curves.wrap(facing)))
    phase = 0 if arm.direction[0] else 1
    road_map.light_groups[number] = LightGroup(number, junction, phase, poles)
    for lane in arm.inward:
        lane.light_group = number
