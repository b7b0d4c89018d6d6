"""Block-diffusion decoding: one engine for every block size, and the slow truth it is tested against."""
