"""Street networks for procedural towns: a jittered grid of nodes, thinned, with bends, T- and 4-way junctions.

The result is abstract: junction nodes with legs (heading, mouth, lane count) and roads (centre poses) between legs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wamdiff2_sim.roads.curves import fillet, unit, wrap

Cell = tuple[int, int]
DIRECTIONS: tuple[Cell, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True)
class Style:
    """What a kind of town looks like. Lengths in metres; ranges are (low, high)."""

    name: str
    columns: tuple[int, int]
    spacing: tuple[float, float]
    jitter: float  # share of the spacing
    lane_odds: tuple[float, float, float]  # share of streets with one, two, three lanes per direction
    lane_width: tuple[float, float]
    corner: tuple[float, float]  # curb radius at junctions
    bend: tuple[float, float]  # centre line radius of plain bends
    wiggle: float  # probability of an extra curve on a road
    thinning: float  # share of removable roads that are removed
    lights: float  # probability that a junction has lights
    sidewalks: float
    medians: float
    hills: float
    narrow_kmh: tuple[int, ...]  # speed limits to choose from, one lane per direction
    wide_kmh: tuple[int, ...]


STYLES = (
    Style(
        name="small_town",
        columns=(3, 5),
        spacing=(55, 110),
        jitter=0.0,
        lane_odds=(1.0, 0.0, 0.0),
        lane_width=(3.8, 4.0),
        corner=(3.1, 6.5),
        bend=(9, 16),
        wiggle=0.05,
        thinning=0.12,
        lights=0.75,
        sidewalks=1.0,
        medians=0.0,
        hills=0.1,
        narrow_kmh=(30, 30, 40),
        wide_kmh=(40,),
    ),
    Style(
        name="old_town",
        columns=(3, 4),
        spacing=(60, 120),
        jitter=0.1,
        lane_odds=(0.85, 0.15, 0.0),
        lane_width=(3.3, 4.0),
        corner=(3.4, 8.0),
        bend=(10, 30),
        wiggle=0.35,
        thinning=0.15,
        lights=0.6,
        sidewalks=0.9,
        medians=0.0,
        hills=0.4,
        narrow_kmh=(30, 40),
        wide_kmh=(40,),
    ),
    Style(
        name="city",
        columns=(3, 4),
        spacing=(90, 170),
        jitter=0.05,
        lane_odds=(0.25, 0.6, 0.15),
        lane_width=(3.2, 3.7),
        corner=(4.0, 10.0),
        bend=(18, 100),
        wiggle=0.2,
        thinning=0.1,
        lights=0.9,
        sidewalks=1.0,
        medians=0.3,
        hills=0.2,
        narrow_kmh=(40, 50),
        wide_kmh=(50, 60),
    ),
    Style(
        name="suburb",
        columns=(3, 4),
        spacing=(90, 180),
        jitter=0.14,
        lane_odds=(0.7, 0.3, 0.0),
        lane_width=(3.3, 3.8),
        corner=(4.0, 10.0),
        bend=(20, 90),
        wiggle=0.8,
        thinning=0.15,
        lights=0.6,
        sidewalks=0.6,
        medians=0.1,
        hills=0.7,
        narrow_kmh=(40, 50),
        wide_kmh=(50, 60),
    ),
)


@dataclass
class Leg:
    """One arm of a junction. `heading` points outward; `mouth` is the distance from the node to the junction's edge."""

    heading: float
    lanes: int = 1
    mouth: float = 0.0
    median: float = 0.0
    road: int = -1


@dataclass
class Node:
    """A junction: position (2,) and legs by grid direction."""

    position: np.ndarray
    legs: dict[Cell, Leg] = field(default_factory=dict)
    corner: float = 5.0


@dataclass
class Road:
    """A road between two legs: centre poses (M, 3) from `start` to `end`, each (cell, direction)."""

    start: tuple[Cell, Cell]
    end: tuple[Cell, Cell]
    lanes: int
    median: float
    speed_kmh: int
    via: list[Cell] = field(default_factory=list)
    poses: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))


@dataclass
class Network:
    style: Style
    lane_width: float
    nodes: dict[Cell, Node]
    roads: list[Road]


def half_width(leg: Leg | Road, lane_width: float) -> float:
    """Distance from a road's centre line to its curb."""
    return leg.median / 2.0 + leg.lanes * lane_width


def make_network(style: Style, rng: np.random.Generator, jitter: float) -> Network:
    """One network; `jitter` scales the style's irregularity (0 = regular grid with straight roads)."""
    columns, rows = (int(rng.integers(style.columns[0], style.columns[1] + 1)) for _ in range(2))
    links = _thinned_grid(columns, rows, style.thinning, rng)
    lane_width = float(rng.uniform(*style.lane_width))
    positions = _positions(columns, rows, style, jitter, rng)
    counts = {axis: 1 + rng.choice(3, size=max(columns, rows), p=style.lane_odds) for axis in (0, 1)}
    nodes = {
        cell: Node(positions[cell], corner=float(rng.uniform(*style.corner)))
        for cell in sorted(links)
        if len(links[cell]) > 2
    }
    for cell, node in nodes.items():
        node.legs = _legs(cell, links[cell], positions, rng, 0.12 * min(1.0, jitter * style.jitter * 20))
    roads = _trace_roads(nodes, links, counts, style, rng)
    for node in nodes.values():
        _set_mouths(node, lane_width)
    for road in roads:
        road.poses = _centre_line(road, nodes, positions, style, lane_width, jitter, rng)
    return Network(style, lane_width, nodes, roads)


def is_clear(network: Network, margin: float = 5.0) -> bool:
    """Whether no two roads come too close to each other, away from the junction that they share."""
    samples = [road.poses[:, :2] for road in network.roads]
    dense = [_every(points, 4.0) for points in samples]
    for i, a in enumerate(dense):
        ends_a = {network.roads[i].start[0], network.roads[i].end[0]}
        for j in range(i, len(dense)):
            ends_b = {network.roads[j].start[0], network.roads[j].end[0]}
            need = margin + sum(half_width(network.roads[k], network.lane_width) for k in (i, j))
            gaps = np.hypot(*(a[:, None] - dense[j][None]).transpose(2, 0, 1))
            if i == j:
                gaps[np.abs(np.subtract.outer(np.arange(len(a)), np.arange(len(a)))) * 4.0 < 3.2 * need] = np.inf
            for cell in ends_a & ends_b:
                node = network.nodes[cell]
                reach = max(leg.mouth for leg in node.legs.values()) + 1.5 * need
                near = [np.hypot(*(points - node.position).T) < reach for points in (a, dense[j])]
                gaps[np.logical_and.outer(*near)] = np.inf
            if gaps.min() < need:
                return False
    return all(_length(road.poses) > 25.0 for road in network.roads)


def _every(points: np.ndarray, step: float) -> np.ndarray:
    s = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))))
    at = np.arange(0.0, s[-1] + step, step)
    return np.stack([np.interp(at, s, points[:, 0]), np.interp(at, s, points[:, 1])], axis=1)


def _length(poses: np.ndarray) -> float:
    return float(np.hypot(*np.diff(poses[:, :2], axis=0).T).sum())


def _thinned_grid(columns: int, rows: int, share: float, rng: np.random.Generator) -> dict[Cell, set[Cell]]:
    """Links of a grid graph by cell, as direction sets; stays connected and every node keeps two links or more."""
    cells = [(i, j) for i in range(columns) for j in range(rows)]
    links = {c: {d for d in DIRECTIONS if (c[0] + d[0], c[1] + d[1]) in set(cells)} for c in cells}
    edges = [(c, d) for c in cells for d in ((1, 0), (0, 1)) if d in links[c]]
    target = int(share * len(edges))
    for index in rng.permutation(len(edges)):
        cell, step = edges[index]
        other, back = (cell[0] + step[0], cell[1] + step[1]), (-step[0], -step[1])
        if target == 0 or min(len(links[cell]), len(links[other])) < 3:
            continue
        links[cell].remove(step)
        links[other].remove(back)
        if _connected(links) and sum(len(v) > 2 for v in links.values()) >= 2:
            target -= 1
        else:
            links[cell].add(step)
            links[other].add(back)
    return links


def _connected(links: dict[Cell, set[Cell]]) -> bool:
    todo, seen = [next(iter(links))], set()
    while todo:
        cell = todo.pop()
        if cell not in seen:
            seen.add(cell)
            todo += [(cell[0] + d[0], cell[1] + d[1]) for d in sorted(links[cell])]
    return len(seen) == len(links)


def _positions(
    columns: int, rows: int, style: Style, jitter: float, rng: np.random.Generator
) -> dict[Cell, np.ndarray]:
    low, high = style.spacing
    xs = np.cumsum(rng.uniform(low, high, columns))
    ys = np.cumsum(rng.uniform(low, high, rows))
    amount = jitter * style.jitter * low
    return {
        (i, j): np.array([xs[i], ys[j]]) + rng.uniform(-amount, amount, 2) for i in range(columns) for j in range(rows)
    }


def _legs(
    cell: Cell, directions: set[Cell], positions: dict[Cell, np.ndarray], rng: np.random.Generator, skew: float
) -> dict[Cell, Leg]:
    """Outward headings: opposite legs are collinear; the crossing axis is 90 degrees +- 20 to the first."""
    axes: list[float] = []
    for forward in ((1, 0), (0, 1)):
        back = (-forward[0], -forward[1])
        ahead, behind = (
            positions[(cell[0] + d[0], cell[1] + d[1])] if d in directions else positions[cell] for d in (forward, back)
        )
        axes.append(float(np.arctan2(*(ahead - behind)[::-1])) + float(rng.uniform(-skew, skew)))
    tilt = wrap(axes[1] - axes[0] - np.pi / 2.0)
    axes[1] = axes[0] + np.pi / 2.0 + float(np.clip(tilt, -0.35, 0.35))
    headings = {(1, 0): axes[0], (0, 1): axes[1], (-1, 0): axes[0] + np.pi, (0, -1): axes[1] + np.pi}
    return {d: Leg(wrap(headings[d])) for d in DIRECTIONS if d in directions}


def _trace_roads(
    nodes: dict[Cell, Node],
    links: dict[Cell, set[Cell]],
    counts: dict[int, np.ndarray],
    style: Style,
    rng: np.random.Generator,
) -> list[Road]:
    """Follow every leg through plain bends to the next junction."""
    roads: list[Road] = []
    for cell, node in nodes.items():
        for step, leg in node.legs.items():
            if leg.road >= 0:
                continue
            via, here, direction = [], (cell[0] + step[0], cell[1] + step[1]), step
            while here not in nodes:
                via.append(here)
                direction = next(d for d in sorted(links[here]) if d != (-direction[0], -direction[1]))
                here = (here[0] + direction[0], here[1] + direction[1])
            axis = 0 if step[0] else 1
            lanes = int(counts[axis][cell[1 - axis]])
            median = float(rng.uniform(1.0, 2.5)) if lanes > 1 and rng.random() < style.medians else 0.0
            end = (here, (-direction[0], -direction[1]))
            limit = int(rng.choice(style.wide_kmh if lanes > 1 else style.narrow_kmh))
            roads.append(Road((cell, step), end, lanes, median, limit, via))
            for one in (leg, nodes[here].legs[end[1]]):
                one.lanes, one.median, one.road = lanes, median, len(roads) - 1
    return roads


def _set_mouths(node: Node, lane_width: float) -> None:
    """Mouth distances that leave room for the curb arcs between neighbouring legs."""
    legs = sorted(node.legs.values(), key=lambda leg: leg.heading)
    for leg in legs:
        leg.mouth = node.corner + 3.0
    for a, b in zip(legs, legs[1:] + legs[:1], strict=True):
        between = (b.heading - a.heading) % (2.0 * np.pi)
        if between > 2.4:
            continue
        wa, wb = half_width(a, lane_width), half_width(b, lane_width)
        tangent = node.corner / np.tan(between / 2.0)
        for leg, own, other in ((a, wa, wb), (b, wb, wa)):
            leg.mouth = max(leg.mouth, (other + own * np.cos(between)) / np.sin(between) + tangent)


def _centre_line(
    road: Road,
    nodes: dict[Cell, Node],
    positions: dict[Cell, np.ndarray],
    style: Style,
    lane_width: float,
    jitter: float,
    rng: np.random.Generator,
) -> np.ndarray:
    (cell_a, step_a), (cell_b, step_b) = road.start, road.end
    a, b = nodes[cell_a].legs[step_a], nodes[cell_b].legs[step_b]
    start = nodes[cell_a].position + a.mouth * unit(a.heading)
    end = nodes[cell_b].position + b.mouth * unit(b.heading)
    middle = [positions[cell] for cell in road.via]
    if not middle and rng.random() < style.wiggle:
        across = np.array([start[1] - end[1], end[0] - start[0]])
        middle = [(start + end) / 2.0 + across * rng.uniform(-0.18, 0.18) * min(1.0, jitter)]
    first, last = middle[0] if middle else end, middle[-1] if middle else start
    lead_a = start + unit(a.heading) * 0.3 * np.hypot(*(first - start))
    lead_b = end + unit(b.heading) * 0.3 * np.hypot(*(last - end))
    controls = np.array([start, lead_a, *middle, lead_b, end])
    inner = 6.0 + half_width(road, lane_width)
    radii = [max(inner, float(rng.uniform(*style.bend))) for _ in middle]
    return fillet(controls, [float(rng.uniform(40, 200)), *radii, float(rng.uniform(40, 200))])
