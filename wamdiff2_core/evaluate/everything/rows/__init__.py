"""Benchmarks whose own packages know nothing of the table: labelled frames, Bench2Drive's result files."""
