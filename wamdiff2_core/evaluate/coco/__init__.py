"""Detection of named categories on data in COCO's format: docs/coco.md."""
