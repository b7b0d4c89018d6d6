"""The faults: how each is made, undone, and by what it is recognised in diagnostics or stats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wamdiff2_ros.faults import naming as n
from wamdiff2_ros.faults.bench import Bench

FLOOD_HZ = 300.0


@dataclass(frozen=True)
class Kind:
    """`inject` does it and returns the target's name; `clear(bench, target)` undoes it after `seconds`.

    endless: the driver's process ends by it, so its memory is best measured when no such fault follows.
    needs_mount: needs the recorder's small disk. recover_s: time allowed until plans come again, plus loading.
    """

    name: str
    seconds: float
    inject: Callable[[Bench], str]
    clear: Callable[[Bench, str], None]
    named: n.Naming
    ends_driver: bool = False
    needs_mount: bool = False
    group: str = ""


def _nothing(bench: Bench, target: str) -> None:
    """Some faults pass by themselves."""


def _camera(**mode: Any) -> Callable[[Bench], str]:
    """One camera, chosen at random, behaves so."""

    def inject(bench: Bench) -> str:
        camera = bench.rng.choice(bench.cameras)
        bench.processes.tell(camera, **mode)
        return bench.topic(camera)

    return inject


def _cameras(**mode: Any) -> Callable[[Bench], str]:
    """All cameras behave so."""

    def inject(bench: Bench) -> str:
        for camera in bench.cameras:
            bench.processes.tell(camera, **mode)
        return bench.prefix

    return inject


def _cameras_well(bench: Bench, target: str) -> None:
    for camera in bench.cameras:
        bench.processes.tell(camera)


def _ego(**mode: Any) -> Callable[[Bench], str]:
    def inject(bench: Bench) -> str:
        bench.processes.tell("ego", **mode)
        return f"{bench.prefix}/odometry"

    return inject


def _ego_well(bench: Bench, target: str) -> None:
    bench.processes.tell("ego")


def _kill_camera(bench: Bench) -> str:
    camera = bench.rng.choice(bench.cameras)
    bench.processes.kill(camera)
    return bench.topic(camera)


def _restart_camera(bench: Bench, target: str) -> None:
    bench.processes.start(bench.camera_of(target))


def _kill_cameras(bench: Bench) -> str:
    for camera in bench.cameras:
        bench.processes.kill(camera)
    return bench.prefix


def _restart_cameras(bench: Bench, target: str) -> None:
    for camera in bench.cameras:
        bench.processes.start(camera)


def _kill(name: str) -> Callable[[Bench], str]:
    def inject(bench: Bench) -> str:
        bench.processes.kill(name)
        return name

    return inject


def _restart(bench: Bench, target: str) -> None:
    bench.processes.start(target)


def _freeze_driver(bench: Bench) -> str:
    bench.processes.freeze("wamdiff2")
    return "wamdiff2"


def _thaw(bench: Bench, target: str) -> None:
    bench.processes.thaw(target)


def _jump(by_s: float) -> Callable[[Bench], str]:
    def inject(bench: Bench) -> str:
        bench.jump(by_s)
        return f"{by_s:+.0f}"

    return inject


def _set(**values: Any) -> Callable[[Bench], str]:
    def inject(bench: Bench) -> str:
        bench.set_parameters(values)
        return ", ".join(values)

    return inject


def _dial(bench: Bench) -> str:
    size = bench.rng.choice([8, 16, 24])
    bench.set_parameters({"block_size": size})
    return str(size)


def _dial_back(bench: Bench, target: str) -> None:
    bench.set_parameters({"block_size": bench.block_size})


def _fill_disk(bench: Bench) -> str:
    bench.disk.shrink()
    return "recorder"


def _free_disk(bench: Bench, target: str) -> None:
    bench.disk.grow()
    bench.recorder_back()


_BROKEN = "{target}: .*(JPEG|PNG|decoded|bytes|encoding)"
_SIZE = "{target}: .*(pictures are of|bytes)"
_SILENT = "{target}.*(last frame|no frame|nothing|silent|s ago|missing|no publisher|late|old)"
_STAMPS = "{target}.*(stamp|differ|old|late|future|apart|zero)"
_ODOMETRY = "{target}.*(finite|nan|odometry|last|nothing|s ago|silent|old)"
_NO_PLAN = "(no plan|plan is .* old|too old|too late|withdrawn)"
_DRIVER_GONE = n.either(n.diagnosed(_NO_PLAN), n.fell_silent("wamdiff2"))
_FASTER = n.faster("received", "{target}", 2.0)
_FLOOD = n.either(n.dropped(3.0), _FASTER)

KINDS: tuple[Kind, ...] = (
    Kind("kill_driver", 1.0, _kill("wamdiff2"), _restart, _DRIVER_GONE, ends_driver=True),
    Kind("kill_camera", 3.0, _kill_camera, _restart_camera, n.diagnosed(_SILENT)),
    Kind("kill_cameras", 3.0, _kill_cameras, _restart_cameras, n.diagnosed(_SILENT)),
    Kind("kill_recorder", 3.0, _kill("recorder"), _restart, n.fell_silent("recorder")),
    Kind("freeze_driver", 3.0, _freeze_driver, _thaw, _DRIVER_GONE),
    Kind("flood_camera", 4.0, _camera(rate_hz=FLOOD_HZ), _cameras_well, _FLOOD),
    Kind("flood_cameras", 4.0, _cameras(rate_hz=FLOOD_HZ), _cameras_well, _FLOOD),
    Kind("flood_odometry", 4.0, _ego(odometry_hz=FLOOD_HZ), _ego_well, _FASTER),
    Kind("random_bytes", 3.0, _camera(content="random"), _cameras_well, n.diagnosed(_BROKEN)),
    Kind("truncated", 3.0, _camera(content="truncated"), _cameras_well, n.diagnosed(_BROKEN)),
    Kind("empty", 3.0, _camera(content="empty"), _cameras_well, n.diagnosed(_BROKEN)),
    Kind("wrong_size", 3.0, _camera(content="wrong_size"), _cameras_well, n.diagnosed(_SIZE)),
    Kind("zero_stamps", 3.0, _camera(zero_stamp=True), _cameras_well, n.diagnosed(_STAMPS)),
    Kind("skewed_stamps", 3.0, _camera(skew_s=-0.65), _cameras_well, n.diagnosed(_STAMPS)),
    Kind("late_camera", 3.0, _camera(late_s=1.3), _cameras_well, n.diagnosed(_STAMPS)),
    Kind("late_cameras", 3.0, _cameras(late_s=1.3), _cameras_well, n.diagnosed(_STAMPS)),
    Kind("nan_odometry", 3.0, _ego(odometry="nan"), _ego_well, n.diagnosed(_ODOMETRY)),
    Kind("infinite_odometry", 3.0, _ego(odometry="infinite"), _ego_well, n.diagnosed(_ODOMETRY)),
    Kind("silent_odometry", 3.0, _ego(odometry="silent"), _ego_well, n.diagnosed(_ODOMETRY)),
    Kind("clock_back", 3.0, _jump(-20.0), _nothing, n.diagnosed("/clock.*jump")),
    Kind("clock_forward", 3.0, _jump(30.0), _nothing, n.diagnosed("/clock.*jump")),
    Kind("valid_parameters", 1.0, _set(threshold=0.85, steps=6), _nothing, n.answered("^accepted")),
    Kind("invalid_parameters", 1.0, _set(block_size=0), _nothing, n.answered("^refused.*block_size")),
    Kind("half_invalid", 1.0, _set(steps=5, threshold=7.5), _nothing, n.answered("^refused.*threshold")),
    Kind("dial", 3.0, _dial, _dial_back, n.in_stats("block_size")),
    Kind("disk_full", 4.0, _fill_disk, _free_disk, n.diagnosed("recorder.*(space|full|write|disk)"), needs_mount=True),
)  # fmt: skip


def by_name(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)
