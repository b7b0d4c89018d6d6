"""The recorder as a real process: what it follows, what a kill -9 and a full disk leave behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.ros
rclpy = pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy  # noqa: E402
from rosbags.highlevel import AnyReader  # noqa: E402
from std_msgs.msg import String, UInt8MultiArray  # noqa: E402

from wamdiff2_ros.bag_salvage import salvage  # noqa: E402
from wamdiff2_ros.mcap_scan import Scan  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "bags"))
from written import small_disk  # noqa: E402

LIMIT_S = 120.0  # against hanging only
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=100)


class Senders:
    """Publishes for the recorder and listens to its diagnostics."""

    def __init__(self) -> None:
        self._context = Context()
        rclpy.init(context=self._context)
        self.node = Node("senders", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self.said: DiagnosticStatus | None = None
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._take, 10)

    def _take(self, message: Any) -> None:
        self.said = next((s for s in message.status if s.name == "recorder: bag"), self.said)

    def values(self) -> dict[str, str]:
        return {pair.key: pair.value for pair in self.said.values} if self.said else {}

    def until(self, true: Callable[[], object], what: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Turn, and do something meanwhile, until something is true."""
        until_s = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < until_s, f"waited in vain: {what}; {self.said}"
            meanwhile()
            self._executor.spin_once(timeout_sec=0.02)

    def in_step(self, send: Callable[[], None], ahead: int) -> Callable[[], None]:
        """`send` called only while fewer than `ahead` of its messages can be unwritten: no queue on the way is full.

        Nothing else may be recorded but at most a handful.
        """
        sent = 0

        def call() -> None:
            nonlocal sent
            if sent < int(self.values().get("written", "0")) + ahead:
                sent += 1
                send()

        return call

    def publisher(self, kind: Any, topic: str, qos: QoSProfile = RELIABLE) -> Any:
        """A publisher that the recorder listens to."""
        made = self.node.create_publisher(kind, topic, qos)
        self.until(lambda: made.get_subscription_count() > 0, f"the recorder takes {topic}")
        return made

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)


@pytest.fixture
def senders() -> Iterator[Senders]:
    made = Senders()
    yield made
    made.close()


@pytest.fixture
def record() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts recorders, and ends those that are left."""
    running: list[subprocess.Popen[str]] = []

    def start(path: Path, **parameters: Any) -> subprocess.Popen[str]:
        values = {"path": path, "min_free_mb": 0, "prefixes": ["/made/", "/diagnostics"]} | parameters
        command = [sys.executable, "-m", "wamdiff2_ros.recorder_node", "--ros-args"]
        for name, value in values.items():
            text = f"[{','.join(value)}]" if isinstance(value, list) else str(value)
            command += ["-p", f"{name}:={text}"]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """Its output after SIGINT."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code and "Traceback" not in errors, errors
    return out + errors


def read(bag: Path) -> list[tuple[str, Any]]:
    with AnyReader([bag]) as reader:
        return [(c.topic, reader.deserialize(raw, c.msgtype)) for c, _, raw in reader.messages()]


def on_disk(bag: Path, topic: str) -> list[bytes]:
    """What whole chunks of an unfinished bag hold."""
    files = sorted(bag.glob("*.mcap"))
    return [m.data for file in files for m in Scan(file).found() if m.channel.topic == topic]


def test_topics_are_followed_whatever_their_qos_and_whenever_they_come(
    tmp_path: Path, senders: Senders, record: Any
) -> None:
    early = senders.node.create_publisher(String, "/made/early", LATCHED)
    early.publish(String(data="said before the recorder came"))
    recorder = record(tmp_path / "bag")
    best = senders.publisher(String, "/made/best", BEST_EFFORT)
    late = senders.publisher(String, "/made/late")
    for k in range(20):
        late.publish(String(data=str(k)))
    bag = tmp_path / "bag"
    written = lambda topic, text: any(text in data for data in on_disk(bag, topic))  # noqa: E731
    senders.until(lambda: written("/made/late", b"19"), "the last of them")
    # A sender that offers less joins a topic: the recorder has to ask for less.
    other = senders.publisher(String, "/made/late", BEST_EFFORT)
    senders.until(lambda: "/made/late" in "".join(senders.values()), "the change is told")
    odd = senders.node.create_publisher(String, "/elsewhere/not_wanted", RELIABLE)
    odd.publish(String(data="x"))
    senders.until(lambda: written("/made/best", b"hello"), "best effort", lambda: best.publish(String(data="hello")))
    senders.until(lambda: written("/made/late", b"joined"), "joined", lambda: other.publish(String(data="joined")))
    ended(recorder)
    found = read(bag)
    assert ("/made/early", "said before the recorder came") in [(t, getattr(m, "data", None)) for t, m in found]
    assert [m.data for t, m in found if t == "/made/late" and m.data != "joined"] == [str(k) for k in range(20)]
    assert {topic for topic, _ in found} == {"/made/early", "/made/best", "/made/late", "/diagnostics"}
    info = yaml.safe_load((bag / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    profiles = {
        t["topic_metadata"]["name"]: t["topic_metadata"]["offered_qos_profiles"][0]
        for t in info["topics_with_message_count"]
    }
    assert profiles["/made/early"]["durability"] == "transient_local"
    assert profiles["/made/best"]["reliability"] == "best_effort" and len(profiles["/made/best"]) == 9


def test_kill_9_loses_nothing_that_was_written_and_closed_files_stay_whole(
    tmp_path: Path, senders: Senders, record: Any
) -> None:
    """Parameters in force, latched, are in every file."""
    bag = tmp_path / "bag"
    recorder = record(bag, max_file_mb=1, prefixes=["/made/"])
    parameters = senders.publisher(String, "/made/parameters", LATCHED)
    parameters.publish(String(data="in force"))
    numbers, sent = senders.publisher(UInt8MultiArray, "/made/numbers"), []

    def send() -> None:
        sent.append(len(sent))
        numbers.publish(UInt8MultiArray(data=len(sent).to_bytes(4, "little") + bytes(20_000)))

    in_step = senders.in_step(send, 60)  # the middleware keeps a hundred
    senders.until(lambda: (bag / "bag_2.mcap").exists(), "a third file", in_step)
    senders.until(lambda: len(on_disk(bag, "/made/numbers")) > 150, "more messages", in_step)
    before = on_disk(bag, "/made/numbers")
    recorder.kill()
    recorder.wait()
    assert not (bag / "metadata.yaml").exists()
    closed = sorted(bag.glob("*.mcap"))[:-1]
    for file in closed:
        with AnyReader([file]) as reader:  # finished: rosbags takes it by itself
            topics = [c.topic for c, _, _ in reader.messages()]
            assert "/made/parameters" in topics and "/made/numbers" in topics
    report = salvage(bag, tmp_path / "saved")
    saved = [bytes(m.data[:4]) for t, m in read(tmp_path / "saved") if t == "/made/numbers"]
    assert len(saved) >= len(before)
    first = int.from_bytes(saved[0], "little")
    assert [int.from_bytes(s, "little") for s in saved] == list(range(first, first + len(saved))), "no gap"
    assert [file.finished for file in report.files[:-1]] == [True] * len(closed) and not report.never_recorded


def test_a_full_disk_is_told_and_recording_goes_on_when_there_is_room(
    tmp_path: Path, senders: Senders, record: Any
) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        (disk / "ballast").write_bytes(bytes(5 * 2**20))
        recorder = record(disk / "bag", queue_mb=2, prefixes=["/made/"])
        pictures = senders.publisher(UInt8MultiArray, "/made/pictures")
        send = lambda: pictures.publish(UInt8MultiArray(data=bytes(100_000)))  # noqa: E731
        error = DiagnosticStatus.ERROR
        # A busy processor must not make the recorder drop anything before the disk is full.
        in_step = senders.in_step(send, 10)
        senders.until(lambda: senders.said and senders.said.level == error, "the full disk is told", in_step)
        assert "full" in senders.said.message
        dropped = "dropped /made/pictures (disk full)"
        senders.until(lambda: dropped in senders.values(), "what is dropped is told by topic", send)
        # It says that the disk is full, then finishes the file.
        senders.until((disk / "bag" / "metadata.yaml").is_file, "what there is can be read now", send)
        assert read(disk / "bag")
        (disk / "ballast").unlink()
        senders.until(lambda: senders.said.level == DiagnosticStatus.WARN, "recording goes on")
        written = int(senders.values()["written"])
        senders.until(lambda: int(senders.values()["written"]) > written, "what comes now is kept", send)
        said = ended(recorder)
        assert "messages of /made/pictures not recorded: disk full" in said
        files = list((disk / "bag").glob("*.mcap"))
        assert len(files) == 2 and len(read(disk / "bag")) > 20
        report = salvage(disk / "bag", tmp_path / "again")
        assert report.complete and report.never_recorded["/made/pictures"] >= 1


def test_a_full_disk_ends_it_by_parameter(tmp_path: Path, senders: Senders, record: Any) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        recorder = record(disk / "bag", on_full="end", min_free_mb=1)
        pictures = senders.publisher(UInt8MultiArray, "/made/pictures")
        send = lambda: pictures.publish(UInt8MultiArray(data=bytes(100_000)))  # noqa: E731
        senders.until(lambda: recorder.poll() is not None, "the recorder ends", send)
        assert "min_free_mb is 1" in ended(recorder, code=1) and read(disk / "bag")


def test_a_restarted_recorder_takes_another_folder(tmp_path: Path, senders: Senders, record: Any) -> None:
    for name in ("bag", "bag-1"):
        recorder = record(tmp_path / "bag", if_exists="number")
        senders.until(lambda folder=tmp_path / name: folder.is_dir(), "the bag is begun")
        ended(recorder)
        assert (tmp_path / name / "metadata.yaml").is_file()


@pytest.mark.parametrize(
    ("parameter", "says"),
    [("on_full:=explode", "'explode'"), ("flush_s:=0", "flush_s"), ("queue_mb:=many", "queue_mb")],
)
def test_wrong_parameters_are_named(tmp_path: Path, parameter: str, says: str) -> None:
    command = [sys.executable, "-m", "wamdiff2_ros.recorder_node", "--ros-args", "-p", f"path:={tmp_path}/b"]
    ran = subprocess.run([*command, "-p", parameter], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 1 and says in ran.stderr and "Traceback" not in ran.stderr
    assert not (tmp_path / "b").exists()
