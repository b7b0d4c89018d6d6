"""The `wamdiff2` command: one module per sub-command."""
