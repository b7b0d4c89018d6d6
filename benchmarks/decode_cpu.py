"""Speed of decoding on this machine: the same as `wamdiff2 bench`; run from the source tree.

python benchmarks/decode_cpu.py --checkpoint DIR [--data SHARDS] [--block-sizes 1,4,8,16,32] [--threads 2] [--write]
"""

from __future__ import annotations

import sys

import typer

from wamdiff2_cli import bench
from wamdiff2_core.errors import Wamdiff2Error

if __name__ == "__main__":
    try:
        typer.run(bench.run)
    except Wamdiff2Error as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(1)
