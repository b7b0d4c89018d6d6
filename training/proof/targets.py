"""What the shipped student must reach beside its autoregressive baseline, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass

POINTS_LOST, SHARE_LOST, FORWARDS_SHARE, PARSE_FAILURES = 1.0, 0.02, 1 / 8, 0.002


@dataclass(frozen=True)
class Target:
    """`measured` must be at least (or, `most`, at most) `limit`; None: not measured. error: its standard error."""

    what: str
    measured: float | None
    limit: float
    most: bool = False
    error: float | None = None

    @property
    def reached(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured <= self.limit if self.most else self.measured >= self.limit

    @property
    def proven(self) -> bool | None:
        """Whether the limit is two standard errors away or more; None where no error is known."""
        if self.measured is None or self.error is None:
            return None
        return abs(self.measured - self.limit) >= 2.0 * self.error

    def values(self) -> dict:
        return {**vars(self), "reached": self.reached, "proven": self.proven}


def targets(rows: dict[str, dict], row: str = "stage3", base: str = "ar") -> list[Target]:
    """From the rows of results.collect; means over seeds."""

    def mean(name: str, key: str) -> float | None:
        found = rows.get(name, {}).get(key)
        return None if found is None else found["mean"]

    def ratio(key: str) -> float | None:
        mine, theirs = mean(row, key), mean(base, key)
        return mine / theirs if mine is not None and theirs else None

    difference = (rows.get(row, {}).get("against_ar") or {}).get("closed_loop") or {"mean": None, "error": None}
    return [
        Target(
            "driving score minus the baseline's, points", difference["mean"], -POINTS_LOST, error=difference["error"]
        ),
        Target("mAP50 as a share of the baseline's", ratio("map50"), 1.0 - SHARE_LOST),
        Target("right answers as a share of the baseline's", ratio("answers"), 1.0 - SHARE_LOST),
        Target("forwards per plan as a share", ratio("forwards_per_plan"), FORWARDS_SHARE, most=True),
        Target("forwards per list of boxes as a share", ratio("forwards_per_detection"), FORWARDS_SHARE, most=True),
        Target("forwards per free-text answer as a share", ratio("forwards_per_answer"), FORWARDS_SHARE, most=True),
        Target("share of answers that cannot be parsed", mean(row, "parse_failures"), PARSE_FAILURES, most=True),
    ]
