"""Training of block-diffusion models: corruption, packed layout, losses, data and the one training loop."""
