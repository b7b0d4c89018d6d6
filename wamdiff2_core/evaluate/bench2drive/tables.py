"""Tables of a report over one or several runs: a heading and rows of texts, for console, Markdown and HTML alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wamdiff2_core.evaluate.bench2drive.benchmark import ABILITIES, ROUTES, SIGNS

Table = list[list[str]]
EXAMPLES = 6
UNKNOWN = "not known"


def value_text(spread: Mapping[str, Any], form: str = "{:.2f}") -> str:
    """Mean of a spread, with the deviation where several runs give one; which runs do where not all do."""
    if spread["mean"] is None:
        return f"{UNKNOWN} ({spread['known']} of {len(spread['values'])} runs)" if spread["known"] else UNKNOWN
    text = form.format(spread["mean"])
    return text if spread["std"] is None else f"{text} ± {form.format(spread['std'])}"


def headline(report: Mapping[str, Any]) -> Table:
    """The figures that are published."""
    figures = report["figures"]
    rows = [
        ["driving score", value_text(figures["driving_score"])],
        ["success rate", value_text(figures["success_rate"], "{:.2%}")],
        ["multi-ability, mean", value_text(report["ability"]["mean"], "{:.2%}")],
        ["driving efficiency", value_text(figures["driving_efficiency"])],
        ["driving smoothness", value_text(figures["driving_smoothness"], "{:.2%}")],
        ["records with comfort data", _per_run(report, lambda run: f"{run['metric_records']} of {run['records']}")],
        ["routes driven", _per_run(report, lambda run: f"{run['routes_driven']} of {ROUTES}")],
    ]
    return [["figure", "value"], *rows]


def ability_table(report: Mapping[str, Any]) -> Table:
    """Success rate by ability. Where a map is needed: between which bounds it lies."""
    rows = []
    for name in ABILITIES:
        details = [run["ability_detail"][name] for run in report["runs"]]
        text = value_text(report["ability"][name], "{:.2%}")
        for number, detail in enumerate(details):
            if detail["undecided"]:
                text += f"; run {number + 1}: " if len(details) > 1 else ", but "
                text += "{:.2%} to {:.2%}".format(*detail["bounds"])
        rows.append([name.replace("_", " "), text, _runs(f"{d['successes']} of {d['routes']}" for d in details)])
    return [["ability", "success rate", "successes of driven routes"], *rows]


def group_table(report: Mapping[str, Any], key: str, heading: str) -> Table:
    """Driving score and success rate of every scenario (`by_scenario`) or town (`by_town`)."""
    rows = [
        [name, str(row["routes"]), value_text(row["driving_score"]), value_text(row["success_rate"], "{:.0%}")]
        for name, row in report[key].items()
    ]
    return [[heading, "routes", "driving score", "success rate"], *rows]


def infraction_table(report: Mapping[str, Any]) -> Table:
    """Messages by kind, over all runs, and the records that hold one."""
    messages: Counter[str] = Counter()
    records: Counter[str] = Counter()
    for run in report["runs"]:
        for name, row in run["infractions"].items():
            messages[name] += row["messages"]
            records[name] += row["records"]
    return [["message", "times", "records"], *([n, str(c), str(records[n])] for n, c in messages.most_common())]


def status_table(report: Mapping[str, Any]) -> Table:
    """How routes ended, over all runs."""
    statuses: Counter[str] = Counter()
    for run in report["runs"]:
        statuses.update(run["statuses"])
    return [["status", "records"], *([name, str(count)] for name, count in statuses.most_common())]


def run_table(report: Mapping[str, Any]) -> Table:
    """A row for each run."""
    rows = []
    for number, run in enumerate(report["runs"]):
        shown = [_known(run["driving_score"]), _known(run["success_rate"], "{:.2%}")]
        shown += [_known(run["ability"]["mean"], "{:.2%}"), _known(run["driving_efficiency"])]
        shown += [_known(run["driving_smoothness"], "{:.2%}"), str(run["records"])]
        rows.append([f"{number + 1}: {run['input']}", *shown])
    return [["run", "driving score", "success", "ability", "efficiency", "smoothness", "records"], *rows]


def problem_table(report: Mapping[str, Any]) -> Table:
    """What to know of the input, by kind; the first few places of each text, the first few texts of each kind."""
    rows = []
    for number, run in enumerate(report["runs"]):
        for kind, count in run["problem_counts"].items():
            places: dict[str, list[str]] = {}
            for problem in run["problems"]:
                if problem["kind"] == kind:
                    places.setdefault(problem["text"], []).append(problem["where"])
            told = _few([f"{_few(where)}: {text}" for text, where in places.items()], "; ")
            run_number = [str(number + 1)] if len(report["runs"]) > 1 else []
            rows.append([*run_number, kind.replace("_", " "), str(count), told])
    heading = ["run"] if len(report["runs"]) > 1 else []
    return [[*heading, "what", "times", "where"], *rows] if rows else []


def all_tables(report: Mapping[str, Any]) -> dict[str, Table]:
    """By title, in the order of a report; empty ones are left out."""
    several = len(report["runs"]) > 1
    tables = {
        "Figures": headline(report),
        "Runs": run_table(report) if several else [],
        "What is not as it should be": problem_table(report),
        "Abilities": ability_table(report),
        "Scenarios": group_table(report, "by_scenario", "scenario"),
        "Towns": group_table(report, "by_town", "town"),
        "How routes ended": status_table(report),
        "Infraction messages": infraction_table(report),
    }
    return {title: table for title, table in tables.items() if len(table) > 1}


def notes(report: Mapping[str, Any]) -> list[str]:
    """How to read the figures."""
    told = [
        f"{report['benchmark']}: figures of older releases were made with other data and are not comparable.",
        f"Driving score and success rate are sums over all records divided by {ROUTES}, as in the official tools; "
        "scenarios and towns count one record per route and a missing route as 0.",
        "Abilities leave routes without a record out of their denominators, as the official tool does.",
    ]
    if len(report["runs"]) > 1:
        told.append(f"Mean ± sample standard deviation (n - 1) over {len(report['runs'])} runs.")
    if any(run["map_needed"] for run in report["runs"]):
        told.append(
            f"{SIGNS.replace('_', ' ')}: routes that failed need the map; without it the ability is only bounded."
        )
    return told


def markdown(report: Mapping[str, Any], title: str) -> str:
    """The whole report as Markdown."""
    parts = [f"# {title}\n", *(f"- {note}" for note in notes(report))]
    for name, (heading, *rows) in all_tables(report).items():
        lines = [heading, ["---"] * len(heading), *rows]
        parts += [f"\n## {name}\n", *("| " + " | ".join(map(_cell, line)) + " |" for line in lines)]
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Texts come from result files: no line break and no bar may break the table, no markup may work."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _few(texts: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(texts) - EXAMPLES} more" if len(texts) > EXAMPLES else ""
    return between.join(texts[:EXAMPLES]) + more


def _known(value: float | None, form: str = "{:.2f}") -> str:
    return UNKNOWN if value is None else form.format(value)


def _per_run(report: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str]) -> str:
    return _runs(text(run) for run in report["runs"])


def _runs(texts: Iterable[str]) -> str:
    """One text per run, or the one that all share."""
    made = list(texts)
    return made[0] if len(set(made)) == 1 else ", ".join(made)


def console_tables(report: Mapping[str, Any]) -> Sequence[tuple[str, Table]]:
    """The short ones, for a terminal."""
    shown = all_tables(report)
    return [(name, shown[name]) for name in ("Figures", "Runs", "Abilities") if name in shown]
