"""From shards to the ring: the same frames in the same places whatever the workers, and what "drive on" replaces."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from micro import SIZES
from PIL import Image
from shards import write_shard

from wamdiff2_core.distill.data import Feeder, Ring, wait_for
from wamdiff2_core.distill.handover import SharedRoom
from wamdiff2_core.distill.samples import DRIVE_ON, DataSpec, Encoder, Frames, read_shard
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.model.prompt import human_text
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.scene import EgoState
from wamdiff2_core.tasks import plan
from wamdiff2_core.tasks.navigation import parse_navigation

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
JUNCTIONS = ("turn left in 40 m", "turn right now", "go straight in 25 m")


def spec_of(folder: Path, **changes: object) -> DataSpec:
    sizes = tuple((width, height) for width, height in SIZES.values())
    room = {"plan": 80, "detect": 32, "ask": 48}
    return replace(DataSpec(str(folder), sizes, prompt_room=room), **changes)  # type: ignore[arg-type]


def filled(root: Path, spec: DataSpec, capacity: int, workers: int = 0) -> Ring:
    ring = Ring(spec, capacity, torch.device("cpu"))
    feeder = Feeder([root], spec, workers=workers).start()
    wait_for(ring, feeder, 1, 120)
    assert feeder.finished and feeder.poll() == []  # nothing comes later
    return ring


def content(ring: Ring) -> list[torch.Tensor]:
    tables = [table[name] for table in ring.tables.values() for name in sorted(table)]
    return [one[: ring.filled].clone() for one in (*ring.images, *tables)]


def arrays(frames: Frames) -> list[np.ndarray]:
    return [*frames.images, *(part for task in frames.tasks.values() for part in vars(task).values())]


def test_the_ring_is_the_same_with_any_workers(micro_folder: Path, tmp_path: Path) -> None:
    """Shards of very different sizes, so that a worker with little to do would overtake the other."""
    for number, frames in enumerate((9, 1, 2, 1, 5)):
        write_shard(tmp_path, number, frames)
    (tmp_path / "shard_00001" / "samples.json").write_text("{broken")
    spec = spec_of(micro_folder)
    here, there = filled(tmp_path, spec, 32), filled(tmp_path, spec, 32, workers=2)
    assert (here.filled, here.seen) == (there.filled, there.seen) == (17, 17)
    assert here.bad == there.bad and sum(here.bad.values()) == 1
    assert all(torch.equal(one, other) for one, other in zip(content(here), content(there), strict=True))
    assert here.images[0][:17].float().std() > 1.0  # pictures, not zeros
    assert (here.surplus, here.surplus_shards) == (0, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_finds_no_room_is_counted_and_said(
    micro_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    for number in range(4):
        write_shard(tmp_path, number, 3)
    spec = spec_of(micro_folder)
    ring, whole = filled(tmp_path, spec, 5, workers), filled(tmp_path, spec, 12)
    assert (ring.filled, ring.seen, ring.surplus, ring.surplus_shards) == (5, 5, 1, 2)
    said = capsys.readouterr().out
    assert "1 frames of the last shard and 2 further shards are not used" in said and said.count("\n") == 1
    for few, all_of_them in zip(content(ring), content(whole), strict=True):
        assert torch.equal(few, all_of_them[:5])


def test_a_ring_that_follows_goes_round(micro_folder: Path, tmp_path: Path) -> None:
    """New shards are found while training goes on, and overwrite the oldest frames."""
    write_shard(tmp_path, 1, 4)
    spec = spec_of(micro_folder)
    ring, feeder = Ring(spec, 6, torch.device("cpu")), Feeder([tmp_path], spec, workers=0, follow=True).start()
    try:
        wait_for(ring, feeder, 3, 120)
        old = ring.images[0].clone()
        assert (ring.filled, ring.seen) == (4, 4) and not feeder.finished
        write_shard(tmp_path, 2, 4)
        wait_for(ring, feeder, 6, 120)
    finally:
        feeder.close()
    assert (ring.filled, ring.seen, ring.surplus) == (6, 8, 0) and feeder.finished
    assert not torch.equal(ring.images[0][:2], old[:2]) and torch.equal(ring.images[0][2:4], old[2:4])


def test_frames_cross_in_shared_memory(micro_folder: Path, tmp_path: Path) -> None:
    """What a parcel holds is the frames; it is memory that both sides see, and it outlives the sender's descriptor."""
    encoder = Encoder(spec_of(micro_folder))
    folder = write_shard(tmp_path, 1, 4)
    names = json.loads((folder / "samples.json").read_text())[4]["image"]
    (folder / names[0]).write_bytes(b"")  # the second frame is lost: the arrays are cut
    with SharedRoom() as room:
        sent = read_shard(folder, encoder, room.zeros)
        parcel = room.parcel(sent)
    got = parcel.open()
    assert got.count == 3 and got.bad == sent.bad and got.bad_names == sent.bad_names
    for mine, theirs, plain in zip(arrays(got), arrays(sent), arrays(read_shard(folder, encoder)), strict=True):
        assert mine.dtype == plain.dtype and np.array_equal(mine, plain)
        theirs.flat[0] = 1 - theirs.flat[0] if theirs.dtype == np.bool_ else 77
        assert mine.flat[0] == theirs.flat[0]
    with SharedRoom() as room, pytest.raises(KeyError):
        room.parcel(sent)  # arrays of another room


def test_images_are_those_of_pillow_and_cut_off_ones_are_refused(micro_folder: Path, tmp_path: Path) -> None:
    folder = write_shard(tmp_path, 1, 2)
    names = json.loads((folder / "samples.json").read_text())[0]["image"]
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / names[0], quality=92)
    Image.fromarray(noise[:32, :32, 0]).save(folder / names[1], quality=92)  # grey
    Image.fromarray(noise[:32, :32]).save(folder / names[2], "PNG")
    frames = read_shard(folder, Encoder(spec_of(micro_folder)))
    for name, seen in zip(names, (frames.images[0][0, 0], *frames.images[1][0]), strict=True):
        with Image.open(folder / name) as image:
            assert np.array_equal(seen, np.asarray(image.convert("RGB")))
    whole = (folder / names[0]).read_bytes()
    (folder / names[0]).write_bytes(whole[: len(whole) // 2])
    cut = read_shard(folder, Encoder(spec_of(micro_folder)))
    assert cut.count == 1 and sum(cut.bad.values()) == 1


def instructions(root: Path, spec: DataSpec, said: str, frames: int = 40) -> tuple[list[list[str]], Frames]:
    """What the plan prompts of a shard say where every frame's instruction is `said`: by row, by frame."""
    folder = write_shard(root, 7, frames)
    samples = json.loads((folder / "samples.json").read_text())
    for sample in samples:
        if sample["task"] == "plan":
            text = plan.prompt_text(EgoState((5.0, 0.0), (0.5, 0.1)), said)
            sample["conversations"][0]["value"] = human_text(text, 3)
    (folder / "samples.json").write_text(json.dumps(samples))
    encoder = Encoder(spec)
    found = read_shard(folder, encoder)
    prompts = found.tasks["plan"].prompt
    texts = [[encoder.tokenizer.decode(row.tolist()).split("; ")[1] for row in frame] for frame in prompts]
    shutil.rmtree(folder)
    return [list(row) for row in zip(*texts, strict=True)], found


@pytest.mark.parametrize("said", JUNCTIONS)
def test_the_last_row_of_a_plan_at_a_junction_may_say_drive_on(micro_folder: Path, tmp_path: Path, said: str) -> None:
    spec = spec_of(micro_folder, fork_share=0.4)
    (first, second, last), frames = instructions(tmp_path, spec, said)
    assert set(first) == set(second) == {said} and set(last) == {said, DRIVE_ON}
    assert 8 <= last.count(DRIVE_ON) <= 24  # 16 expected of 40
    assert (frames.tasks["plan"].answer[:, 0] == frames.tasks["plan"].answer[:, 2]).all()  # the plan stays
    assert instructions(tmp_path, spec, said)[0][2] == last  # the same each time
    assert instructions(tmp_path, replace(spec, seed=1), said)[0][2] != last
    assert instructions(tmp_path, replace(spec, fork_share=1.0), said)[0] == [first, second, [DRIVE_ON] * 40]
    assert instructions(tmp_path, replace(spec, fork_share=0.0), said)[0] == [first] * 3


@pytest.mark.parametrize("said", ["follow the road", "stop at the bakery", DRIVE_ON])
def test_other_instructions_stay(micro_folder: Path, tmp_path: Path, said: str) -> None:
    rows, _ = instructions(tmp_path, spec_of(micro_folder, fork_share=1.0), said, frames=4)
    assert rows == [[said] * 4] * 3


def test_a_single_row_stays_exact(micro_folder: Path, tmp_path: Path) -> None:
    spec = spec_of(micro_folder, fork_share=1.0, prompts={"plan": 1, "detect": 1, "ask": 1})
    assert instructions(tmp_path, spec, JUNCTIONS[0], frames=4)[0] == [[JUNCTIONS[0]] * 4]


def test_drive_on_is_plain_text_to_the_shipped_tokenizer() -> None:
    tokenizer = TextTokenizer.from_folder(TINY)
    text = plan.prompt_text(EgoState((5.0, 0.0)), DRIVE_ON)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert parse_navigation(DRIVE_ON) is None  # no command: a sentence that the model has to read
    longest = plan.prompt_text(EgoState((5.0, 0.0)), "go straight in 25 m")
    assert len(tokenizer.encode(text)) <= len(tokenizer.encode(longest))  # fits where the command fitted


def test_fork_share_is_checked(micro_folder: Path) -> None:
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="fork_share"):
            spec_of(micro_folder, fork_share=wrong)


def test_a_worker_that_cannot_start_is_said(micro_folder: Path, tmp_path: Path) -> None:
    write_shard(tmp_path, 0, 1)
    spec = spec_of(micro_folder)
    ring = Ring(spec, 4, torch.device("cpu"))
    feeder = Feeder([tmp_path], replace(spec, checkpoint=str(tmp_path / "none")), workers=1).start()
    with pytest.raises(DataError, match="reading shards failed"):
        wait_for(ring, feeder, 1, 120)
