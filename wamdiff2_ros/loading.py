"""A checkpoint into memory and out of it again, for the driver node. Knows no rclpy."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_core.expected import Expected
from wamdiff2_core.scene import Camera, Failure, FailureKind, Scene
from wamdiff2_ros.asking import turn_dial
from wamdiff2_ros.deadline import parse_dial
from wamdiff2_ros.parameters import Settings

T = TypeVar("T")
POLL_S = 0.05
# What torch, the file system and odd values in a checkpoint's files raise.
LOADING_ERRORS = (RuntimeError, AssertionError, OSError, ValueError, TypeError, LookupError)
GREY_HEIGHT_WIDTH = (96, 160)


class Interrupted(Exception):
    """The process was told to end while something was being loaded; `thread` goes on until it has finished."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__("told to end while loading")
        self.thread = thread


def load_driver(settings: Settings) -> Any:
    """The Driver of the checkpoint, on the device. Imports torch, so only when needed.

    Raises CheckpointError or ConfigError with one line that names the folder and the device.
    """
    if not settings.checkpoint:
        raise ConfigError("checkpoint: no folder is named; set this parameter")
    from wamdiff2_core.driver import Driver

    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    try:
        return Driver.from_checkpoint(
            settings.checkpoint,
            device=settings.device,
            dtype=settings.dtype,
            kernels=settings.kernels,
            block_sizes=dial_block_sizes(settings),
        )
    except LOADING_ERRORS as error:
        raise ConfigError(f"{settings.checkpoint} on {settings.device}: {first_line(error)}") from error


def dial_block_sizes(settings: Settings) -> tuple[int, ...]:
    """Block sizes that the settings name: the dial as it is set, and those of deadline mode."""
    return tuple(sorted({settings.block_size, *(parse_dial(dial).block_size for dial in settings.deadline_dials)}))


def dial_problem(driver: Any, settings: Settings) -> str | None:
    """Why the driver cannot decode as the settings say; None: it can. Engines know some block sizes only."""
    sizes = driver.block_sizes
    unknown = [] if sizes is None else [str(size) for size in dial_block_sizes(settings) if size not in sizes]
    if not unknown:
        return None
    return (
        f"block size {', '.join(unknown)}: kernels {driver.kernels} were made for {', '.join(map(str, sizes))}; "
        "set it before configure"
    )


def get_ready(driver: Any, settings: Settings) -> str:
    """Let an engine capture what the settings can lead to, so that turning the dial captures nothing; a log line.

    Raises ConfigError if that fails.
    """
    expected = Expected(
        tasks=settings.tasks,
        together=settings.batch_tasks,
        candidates=settings.candidates,
        scored=settings.scorer != "none",
        may_lack=tuple(sorted(optional_cameras(driver, settings))),
        instruction=settings.max_instruction_length,
        question=settings.max_question_length,
    )
    try:
        seconds = driver.get_ready(expected)
    except (Wamdiff2Error, *LOADING_ERRORS) as error:
        raise ConfigError(f"{settings.checkpoint} on {settings.device}: getting ready: {first_line(error)}") from error
    return f"kernels {driver.kernels} ({driver.kernels_reason}), ready after {seconds:.1f} s"


def grey_scene(settings: Settings) -> Scene:
    """A scene without content, to warm up and to measure with."""
    images = {name: np.full((*GREY_HEIGHT_WIDTH, 3), 128, np.uint8) for name in settings.cameras}
    return Scene(images, settings.default_instruction, question="what is ahead")


def answer_grey(driver: Any, settings: Settings, tasks: tuple[str, ...]) -> Mapping[str, Any]:
    """Results of `tasks` on a grey scene, decoded as the settings say; raises what the driver raises."""
    turn_dial(driver, settings)
    return driver.answer(grey_scene(settings), tasks=tasks)


def warm_up(driver: Any, settings: Settings) -> None:
    """Answer one grey scene, so that the first real one is not slow. ConfigError if the model cannot, or if it needs a
    camera that is not among the settings': then no scene would ever be answered.
    """
    try:
        results = answer_grey(driver, settings, settings.tasks)
    except LOADING_ERRORS as error:  # RuntimeError: how torch says "out of memory"
        raise ConfigError(f"{settings.checkpoint} on {settings.device}: warm-up: {first_line(error)}") from error
    for result in results.values():
        if isinstance(result, Failure) and result.kind is FailureKind.INPUT:
            raise ConfigError(f"{settings.checkpoint} with cameras {', '.join(settings.cameras)}: {result.message}")


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that torch may add."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def first_camera(settings: Settings) -> Camera | None:
    """The first camera as the rig file has it, None without a rig. ConfigError if the rig lacks it."""
    if not settings.rig:
        return None
    from wamdiff2_core.rig import load_rig

    for camera in load_rig(settings.rig):
        if camera.name == settings.cameras[0]:
            return camera
    raise ConfigError(f"rig {settings.rig} has no camera {settings.cameras[0]}")


def optional_cameras(driver: Any, settings: Settings) -> frozenset[str]:
    """Cameras that scenes may lack; none unless missing_camera is drop. ConfigError if the checkpoint allows none."""
    if settings.missing_camera != "drop":
        return frozenset()
    optional = frozenset(driver.optional_cameras) & set(settings.cameras)
    if not optional:
        raise ConfigError(
            f"missing_camera: drop, but checkpoint {settings.checkpoint} needs each of {', '.join(settings.cameras)} "
            "(its config.json names no optional_cameras among them); use hold or stop"
        )
    return optional


def in_background(work: Callable[[], T], stop: Callable[[], bool]) -> T:
    """The result of `work`, done in a thread, so that a signal is heard meanwhile.

    Raises what `work` raises, or Interrupted as soon as `stop()` is true; the thread is then left behind.
    """
    done = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - handed on to the caller below
            errors.append(error)
        done.set()

    thread = threading.Thread(target=run, name="driver loading", daemon=True)
    thread.start()
    while not done.wait(POLL_S):
        if stop():
            raise Interrupted(thread)
    if errors:
        raise errors[0]
    return results[0]


def free_memory() -> None:
    """Give what nobody holds any more back to the system and the GPU, so that the next checkpoint has room."""
    gc.collect()
    torch = sys.modules.get("torch")  # not loaded: it holds nothing
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
