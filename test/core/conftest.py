"""Makes the helpers beside the tests importable, and Triton's kernels interpreted where there is no GPU."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
if not torch.cuda.is_available():
    # Before anything imports Triton (transformers does where it is installed): it reads this once.
    os.environ.setdefault("TRITON_INTERPRET", "1")
