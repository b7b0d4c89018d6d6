"""What the figures hide: routes counted twice, not at all or not part of the benchmark, scores that do not add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from wamdiff2_core.evaluate.bench2drive.benchmark import OFF_LANE, ROUTES, penalty, routes, routes_by_id
from wamdiff2_core.evaluate.bench2drive.comfort import PERCENT
from wamdiff2_core.evaluate.bench2drive.records import Problem, Record

ROUNDING = 2e-3  # per cent
OFF_LANE_ROUNDING = 0.005  # per cent of the route, in the out-of-lane message


def doubts(records: Sequence[Record], first: Mapping[str, Record], map_needed: Sequence[str]) -> Iterator[Problem]:
    """Problems of the records as a whole. `first`: the record by route number that abilities count."""
    for number, times in Counter(record.number for record in records).items():
        if times > 1:
            text = f"{times} records: all count in both sums, as in the official merge"
            yield Problem("duplicate_route", number, text)
        if number not in routes_by_id():
            yield Problem("unknown_route", number, f"not among the {ROUTES}: counts in both sums, in no ability")
    for route in routes():
        if route.id not in first:
            yield Problem("missing_route", route.id, f"{route.town} {route.scenario}: counts as 0")
    for record in records:
        yield from _wrong_score(record)
    for number in map_needed:
        yield Problem("map_needed", number, "failed: whether it passed its first junction needs map_lookups")


def _wrong_score(record: Record) -> Iterator[Problem]:
    """The composed score against completion times penalties; the file's score counts either way."""
    messages = record.infractions.get(OFF_LANE, ())
    matches = [PERCENT.search(message) for message in messages]
    if not all(matches):
        yield Problem("wrong_score", record.route_id, f"no percentage in {messages[matches.index(None)]!r}")
        return
    outside = sum(float(match[1]) for match in matches if match)
    expected = record.score_route * max(0.0, penalty(record.infractions, outside))
    slack = ROUNDING + len(matches) * OFF_LANE_ROUNDING * record.score_route / 100.0
    if abs(expected - record.score_composed) > slack:
        text = f"score_composed {record.score_composed:g}, {expected:.6g} by its infractions: counted as the file says"
        yield Problem("wrong_score", record.route_id, text)
