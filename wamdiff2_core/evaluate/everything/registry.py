"""The benchmarks of this package, in the order of the table. The world's own one joins where the command is made."""

from __future__ import annotations

from wamdiff2_core.evaluate.everything.benchmark import Benchmark


def benchmarks() -> tuple[Benchmark, ...]:
    """All of them. Imported here and not above: a benchmark may need libraries that another does not."""
    from wamdiff2_core.evaluate.coco.row import Coco
    from wamdiff2_core.evaluate.drivebench.row import DriveBench
    from wamdiff2_core.evaluate.everything.rows.bench2drive import Bench2Drive
    from wamdiff2_core.evaluate.everything.rows.frames import Frames
    from wamdiff2_core.evaluate.lingoqa.row import LingoQa
    from wamdiff2_core.evaluate.navsim.row import Navsim

    return (Navsim(), Bench2Drive(), Coco(), LingoQa(), DriveBench(), Frames())
