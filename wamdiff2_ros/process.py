"""How every node process starts and ends: one spin, a clean end on SIGINT and SIGTERM, exit code 0."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.exceptions import ParameterException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation

from wamdiff2_core.errors import Wamdiff2Error

SUPERVISED = "WAMDIFF2_SUPERVISED"  # set by the supervisor: end when it is gone
_PR_SET_PDEATHSIG = 1


class NodeFailed(Exception):
    """Raised inside a callback to end the process with a message and exit code 1."""


def die_with_supervisor() -> None:
    """Ask Linux for a SIGTERM when the supervisor dies, even by kill -9, so that no node is left behind."""
    supervisor = os.environ.get(SUPERVISED)
    if supervisor is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(supervisor):  # it died before the line above
        sys.exit(1)


def run_node(make_node: Callable[[], Any], args: list[str] | None = None) -> int:
    """Make a node and spin it until SIGINT, SIGTERM or its `finished` event. Returns the exit code.

    A node may have `finished` (threading.Event) and `close()`, which is called before it is destroyed.
    """
    die_with_supervisor()
    rclpy.init(args=args)
    executor = SingleThreadedExecutor()
    node = None
    code = 0
    try:
        node = make_node()
        executor.add_node(node)
        finished = getattr(node, "finished", threading.Event())
        while rclpy.ok() and not finished.is_set():
            executor.spin_once(timeout_sec=0.2)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except rclpy_implementation.RCLError:
        if rclpy.ok():  # otherwise: interrupted while the node was being made
            raise
    except (NodeFailed, Wamdiff2Error, ParameterException) as error:
        name = node.get_name() if node is not None else "node"
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        code = 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if node is not None:
            if hasattr(node, "close"):
                node.close()
            node.destroy_node()
        executor.shutdown(timeout_sec=1.0)
        rclpy.try_shutdown()
    return code
