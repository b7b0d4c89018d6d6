"""The fault test: real node processes, faults from a seeded schedule, and an independent check of what came out."""
