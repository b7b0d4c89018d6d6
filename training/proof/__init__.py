"""The proof of the method on our own world: which checkpoints are trained, how they are measured, what is drawn."""
