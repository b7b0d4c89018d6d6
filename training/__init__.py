"""Thin entry points and recipes of the training; the work itself is in `wamdiff2_core/distill`."""
