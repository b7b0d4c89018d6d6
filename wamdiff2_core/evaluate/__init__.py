"""Scores of answers against known truth: waypoints, boxes, texts. Import the submodule you need."""
