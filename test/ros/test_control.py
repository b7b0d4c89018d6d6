"""The driver node controlled from another process: lifecycle, another checkpoint, parameters, every way to end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from control_process import LONG_S, MEGABYTES  # noqa: E402
from remote import Remote  # noqa: E402

START = "autostart:=false"


@pytest.fixture
def start() -> Iterator[Callable[..., Remote]]:
    made: list[Remote] = []

    def make(*parameters: str, module: str = "control_process") -> Remote:
        arguments = [word for parameter in parameters for word in ("-p", parameter)]
        made.append(Remote(module, *arguments))
        return made[-1]

    yield make
    for remote in made:
        remote.close()


def test_another_checkpoint_without_a_restart_and_the_old_ones_memory_is_free(start: Callable[..., Remote]) -> None:
    r = start(START, "checkpoint:=one", "max_jerk_mps3:=50")
    pid = r.process.pid
    assert r.state() == "unconfigured" and r.change("configure") and r.state() == "inactive"
    assert r.change("activate") and r.state() == "active"
    r.until(lambda: len(r.plans()) > 2, "plans", r.send)
    assert r.plans()[-1].raw_x_m[0] == pytest.approx(0.5)
    assert "fixed after configure" in r.set(checkpoint="two")[0]
    loaded_mb = r.memory_mb()
    assert r.change("deactivate") and r.change("cleanup") and r.state() == "unconfigured"
    freed_mb = loaded_mb - r.memory_mb()
    assert freed_mb > 0.9 * MEGABYTES
    assert r.set(checkpoint="two") == [] and r.change("configure")
    assert r.memory_mb() < loaded_mb + 0.5 * MEGABYTES
    before = len(r.trajectories)
    assert r.change("activate")
    r.until(lambda: len(r.plans()) > before + 2, "plans of the other checkpoint", r.send)
    assert r.plans()[-1].raw_x_m[0] == pytest.approx(1.0)
    r.until(lambda: r.stats[-1].checkpoint == "two", "stats that name it", r.send)
    assert r.process.pid == pid and r.process.poll() is None
    assert r.end(signal.SIGINT) == 0 and "Traceback" not in r.log


def test_a_failing_configure_can_be_tried_again(start: Callable[..., Remote]) -> None:
    r = start(START, "checkpoint:=nowhere")
    for _ in range(2):
        assert not r.change("configure") and r.state() == "unconfigured"
    assert r.set(checkpoint="one") == [] and r.change("configure") and r.change("activate")
    r.until(r.plans, "a plan", r.send)
    assert r.end(signal.SIGTERM) == 0 and "Traceback" not in r.log
    said = [line for line in r.lines if "ERROR" in line]
    assert len(said) == 2 and all("configure: nowhere: expected a checkpoint folder" in line for line in said)


def test_a_mistake_in_a_transition_is_logged_and_leads_back_to_unconfigured(start: Callable[..., Remote]) -> None:
    r = start(START, "checkpoint:=bug")
    assert not r.change("configure") and r.state() == "unconfigured"
    r.until(lambda: "KeyError: 'a mistake in the program'" in r.log, "the traceback in the log")
    assert r.set(checkpoint="one") == [] and r.change("configure") and r.change("activate")
    r.until(r.plans, "a plan", r.send)
    assert r.end(signal.SIGINT) == 0


def test_no_output_while_inactive_and_no_old_frame_after(start: Callable[..., Remote]) -> None:
    r = start(START, "checkpoint:=one", "max_frame_age_s:=10", "odometry_max_age_s:=10")
    assert r.change("configure") and r.change("activate")
    r.until(r.plans, "a plan", r.send)
    assert r.change("deactivate")
    r.state()  # what was on its way has arrived once the node has answered
    count = len(r.stats), len(r.trajectories)
    for _ in range(10):
        r.send()
        assert r.state() == "inactive"
    assert (len(r.stats), len(r.trajectories)) == count
    old_s = time.time()
    r.send(old_s)
    assert r.change("activate")
    for _ in range(5):
        r.send(old_s)
        r.state()
    assert not r.stats[count[0] :]
    r.until(lambda: len(r.plans()) > count[1], "new plans", r.send)
    new = r.trajectories[count[1] :]
    assert all(m.header.stamp.sec + m.header.stamp.nanosec * 1e-9 > old_s for m in new if m.status == m.STATUS_VALID)


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)],
    ids=lambda signals: "+".join(s.name for s in signals),
)
@pytest.mark.parametrize("busy", ["answering", "loading"])
def test_signals_end_it_while_busy(
    start: Callable[..., Remote], signals: tuple[signal.Signals, ...], busy: str
) -> None:
    r = start("checkpoint:=slow" if busy == "answering" else "checkpoint:=loading")
    r.until(lambda: busy in r.lines, busy, r.send)
    assert r.limit_s < LONG_S / 2
    assert r.end(*signals) == 0, r.log  # raises at the limit, long before the work would be done
    assert "Traceback" not in r.log and "terminate called" not in r.log


@pytest.mark.parametrize("state", ["unconfigured", "inactive", "active"])
def test_the_shutdown_transition_ends_the_process(start: Callable[..., Remote], state: str) -> None:
    r = start(START, "checkpoint:=slow")
    if state != "unconfigured":
        assert r.change("configure")
    if state == "active":
        assert r.change("activate")
        r.until(lambda: "answering" in r.lines, "an answer", r.send)
    assert r.change("shutdown")
    assert r.end() == 0 and "Traceback" not in r.log


def test_deactivated_in_an_answer_it_says_so_and_stays_in_order(start: Callable[..., Remote]) -> None:
    r = start(START, "checkpoint:=slow")
    assert r.change("configure") and r.change("activate")
    r.until(lambda: "answering" in r.lines, "an answer", r.send)
    assert r.change("deactivate")
    assert not r.change("cleanup") and r.state() == "inactive"
    assert not r.change("activate") and r.state() == "inactive"
    assert r.change("shutdown") and r.end() == 0
    assert not r.plans() and "Traceback" not in r.log
    assert "deactivated; an answer is still being computed" in r.log
    assert "cleanup: an answer from before is still being computed; try again" in r.log


def test_whole_numbers_serve_as_doubles_and_values_in_force_are_told(start: Callable[..., Remote]) -> None:
    r = start(START, "checkpoint:=one", "threshold:=1", "max_frame_age_s:=2", "treshold:=0.5")
    r.until(lambda: "'treshold' was given but does not exist; did you mean 'threshold'?" in r.log, "the warning")
    assert r.set(sync_tolerance_s=1) == [] and r.change("configure")

    def told() -> dict:
        return json.loads(r.parameters[-1].data)

    r.until(lambda: r.parameters and told()["why"] == "configure", "the parameters in force")
    values = told()["parameters"]
    assert (values["threshold"], values["max_frame_age_s"], values["sync_tolerance_s"]) == (1.0, 2.0, 1.0)
    assert all(type(values[name]) is float for name in ("threshold", "max_frame_age_s", "sync_tolerance_s"))
    assert told()["node"] == "/wamdiff2"
    r.until(lambda: 'checkpoint="one"' in r.log, "the line with the parameters")
    assert "rule" in r.set_together(block_size=4, steps=2, rule="poem")
    assert r.set_together(block_size=4, steps=2) == ""
    r.until(lambda: "block_size" in told()["why"], "the change")
    assert (told()["parameters"]["block_size"], told()["parameters"]["rule"]) == (4, "dynamic")
    assert len([m for m in r.parameters if json.loads(m.data)["parameters"]["block_size"] == 4]) == 1
