"""The off-screen OpenGL context: EGL, no window, no display server."""

from __future__ import annotations

import os
from typing import Any

import moderngl

from wamdiff2_core.errors import ConfigError

DEVICE_VARIABLE = "WAMDIFF2_EGL_DEVICE"
GL_VERSION = 430  # shaders are 3.30; drawing all visible chunks in one call needs 4.3


def create_context(device_index: int | None = None) -> moderngl.Context:
    """A stand-alone OpenGL 4.3 core context on EGL device `device_index` (default: $WAMDIFF2_EGL_DEVICE, else 0).

    EGL lists NVIDIA cards first and Mesa's software driver last; `describe` tells which one it is.
    Raises ConfigError when there is no such device or no EGL.
    """
    index = device_index if device_index is not None else int(os.environ.get(DEVICE_VARIABLE, "0"))
    libraries = {"libgl": "libGL.so.1", "libegl": "libEGL.so.1"}
    settings: dict[str, Any] = {"backend": "egl", "device_index": index, **libraries}
    try:
        return moderngl.create_context(require=GL_VERSION, standalone=True, **settings)
    except Exception as error:
        raise ConfigError(
            f"no OpenGL {GL_VERSION} context on EGL device {index} ({error}); is libEGL.so.1 there?"
        ) from error


def describe(context: moderngl.Context) -> str:
    """Driver and version, for logs: `llvmpipe (...), OpenGL 4.5`."""
    with context:
        return f"{context.info['GL_RENDERER']}, OpenGL {context.version_code / 100:.1f}"
