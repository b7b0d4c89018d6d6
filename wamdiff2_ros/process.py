"""How every node process starts and ends: one spin, a clean and quick end on SIGINT and SIGTERM, exit code 0."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

import rclpy
from rclpy.exceptions import ParameterException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_ros.settings_report import parameter_file_warnings

SUPERVISED = "WAMDIFF2_SUPERVISED"  # set by the supervisor: end when it is gone
SWITCH_S = 0.0005  # that a callback may keep the thread that answers waiting for the interpreter; Python has 5 ms
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

    A node may have `finished` and `interrupted` (threading.Event; the second is set by a signal), `close()`, which is
    called before it is destroyed, and `busy`: True when a thread of it could not be ended. The process then ends
    here, because Python aborts when a thread is inside native code at its own exit.
    """
    die_with_supervisor()
    sys.setswitchinterval(SWITCH_S)
    interrupted = threading.Event()
    # Only a note is made of a signal, and the loop below sees it: nothing is torn apart half-way, however many come.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except rclpy_implementation.RCLError as error:  # a parameter file that rcl cannot read, for one
        print(f"arguments: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return 1
    executor = SingleThreadedExecutor()
    made: list[Any] = []
    try:
        code = _spin(make_node, made, executor, interrupted, args)
    finally:
        for node in made:
            if hasattr(node, "close"):
                node.close()
            node.destroy_node()
        executor.shutdown(timeout_sec=0.5)
        rclpy.try_shutdown()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if any(getattr(node, "busy", False) for node in made):
        leave_now(code)
    return code


def leave_now(code: int) -> None:
    """End the process without Python's own clean-up, which waits for or trips over threads that are still busy."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _spin(
    make_node: Callable[[], Any],
    made: list[Any],
    executor: SingleThreadedExecutor,
    interrupted: threading.Event,
    args: list[str] | None,
) -> int:
    """The exit code: 1 if the node says that it failed. A node that was made is put into `made`."""
    try:
        node = make_node()
        made.append(node)
        if hasattr(node, "interrupted"):
            node.interrupted = interrupted
        for warning in parameter_file_warnings(node, sys.argv if args is None else args):
            node.get_logger().warning(warning)
        executor.add_node(node)
        finished = getattr(node, "finished", threading.Event())
        while rclpy.ok() and not finished.is_set() and not interrupted.is_set():
            executor.spin_once(timeout_sec=0.1)
    except ExternalShutdownException:
        pass
    except rclpy_implementation.RCLError:
        if rclpy.ok():  # otherwise: the context was shut down while the node was being made
            raise
    except (NodeFailed, Wamdiff2Error, ParameterException) as error:
        print(f"{made[0].get_name() if made else 'node'}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def said_aloud(transition: Callable[..., TransitionCallbackReturn]) -> Callable[..., TransitionCallbackReturn]:
    """Log what a transition raises: rclpy turns it into an error state and says nothing."""

    @wraps(transition)
    def wrapped(node: Any, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except Exception:
            node.get_logger().error(traceback.format_exc())
            raise

    return wrapped
