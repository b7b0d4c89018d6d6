"""Several plans for one scene, and which of them to drive: docs/candidates.md."""
