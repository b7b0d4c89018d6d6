"""Bench2Drive's figures from the result files of its leaderboard, equal to those of its own tools.

`summarize(folder)` sums up one evaluation, `summarize_seeds(folders)` several of the same agent with their spread;
`output.write_summary` leaves summary.json, report.md, report.html and merged.json behind. What the official tools do
with duplicates, missing routes and partial files is done here too, and told; see `records` for what they fall over.
"""

from wamdiff2_core.evaluate.bench2drive.seeds import find_runs, summarize_seeds
from wamdiff2_core.evaluate.bench2drive.summary import summarize

__all__ = ["find_runs", "summarize", "summarize_seeds"]
