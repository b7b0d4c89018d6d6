"""Our world's shards as one conversation file: as they are, for our checkpoints, or in upstream's words and formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from training.convert.common import Sample, plan_sample
from wamdiff2_core.distill.data import find_shards
from wamdiff2_core.distill.stream.conversations import BadSample, Tally, checked
from wamdiff2_core.distill.stream.index import Scan, scan
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.prompt import IMAGE
from wamdiff2_core.scene import EgoState, Failure
from wamdiff2_core.tasks import detect, plan

FORMS = ("as_is", "upstream")
_PLAN = re.compile(r"velocity (\S+) (\S+) acceleration (\S+) (\S+); (.*); plan", re.DOTALL)
_ASK = "; answer"


def convert(
    root: Path, tally: Tally, form: str = "as_is", holdout: int = 0, tasks: tuple[str, ...] = ()
) -> Iterator[Sample]:
    """Samples of all shards below `root`, image paths relative to it.

    holdout: shards whose number it divides are left for evaluation; tasks: only these (all when empty).
    """
    shards = find_shards([root], holdout)
    if not shards:
        raise DataError(f"{root}: expected folders shard_*/samples.json, found none to train on")
    for shard in shards:
        yield from shard_samples(shard, tally, form, tasks)


def shard_samples(shard: Path, tally: Tally, form: str = "as_is", tasks: tuple[str, ...] = ()) -> Iterator[Sample]:
    """Samples of one shard; image paths begin with its name."""
    found, path = Scan(), shard / "samples.json"
    for entry in scan(path, found):
        try:
            checked(entry.value)
            assert isinstance(entry.value, dict)  # checked
            if not tasks or entry.value.get("task") in tasks:
                yield shard_sample(entry.value, shard.name, form)
        except BadSample as error:
            tally.add(f"{shard.name}[{entry.number}]", error)
    for broken in found.broken:
        tally.add(f"{shard.name}[{broken.number}] at {broken.start}", BadSample("broken JSON", broken.reason))


def shard_sample(value: dict, folder: str, form: str) -> Sample:
    """A checked sample of a shard. Raises BadSample for what upstream's formats cannot say."""
    image = value.get("image") or []
    images = [f"{folder}/{path}" for path in ([image] if isinstance(image, str) else image)]
    name = f"{folder}_{value.get('id', '')}"
    if form == "as_is":
        kept = {key: value[key] for key in ("datasource", "conversations", "task") if key in value}
        return {"id": name, "image": images, **kept}
    turns = value["conversations"]
    if len(turns) != 2 or not images:
        raise BadSample("not one question about images", f"{len(turns)} turns, {len(images)} images")
    text = turns[0]["value"].replace(IMAGE, "").strip()
    return _UPSTREAM[value.get("task", "")](name, images[0], text, turns[1]["value"])


def _plan(name: str, image: str, text: str, answer: str) -> Sample:
    said, parsed = _PLAN.fullmatch(text), plan.parse(answer, "fixed")
    if said is None or isinstance(parsed, Failure):
        raise BadSample("not in the fixed format", f"plan {text[:60]!r} {answer[:40]!r}")
    vx, vy, ax, ay = (float(said[group]) for group in range(1, 5))
    return plan_sample(name, "wamdiff2_sim", image, EgoState((vx, vy), (ax, ay)), said[5], parsed.points, "upstream")


def _detect(name: str, image: str, text: str, answer: str) -> Sample:
    parsed = detect.parse(answer, "fixed")
    if isinstance(parsed, Failure):
        raise BadSample("not in the fixed format", f"detect {answer[:60]!r}")
    return _talk(name, image, detect.upstream_prompt(), detect.serialise(parsed.boxes, "qwen3vl_json"))


def _ask(name: str, image: str, text: str, answer: str) -> Sample:
    return _talk(name, image, f"{IMAGE}\n{text.removesuffix(_ASK)}", answer)


def _no_task(name: str, image: str, text: str, answer: str) -> Sample:
    raise BadSample("no task", "expected plan, detect or ask, got none")


def _talk(name: str, image: str, human: str, answer: str) -> Sample:
    said = [{"from": "human", "value": human}, {"from": "gpt", "value": answer}]
    return {"id": name, "datasource": "wamdiff2_sim", "image": [image], "conversations": said}


_UPSTREAM = {"plan": _plan, "detect": _detect, "ask": _ask, "": _no_task}
