"""Candidate plans of one scene, and the scorers that choose among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from wamdiff2_core import DecodingConfig, Driver, Scene
from wamdiff2_core.decode.likelihood import remasked_log_likelihood
from wamdiff2_core.decode.reference import block_logits
from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.scene import Box, Camera, Detections, EgoState, Failure, Plan
from wamdiff2_core.select import choose, figures, ground, rules
from wamdiff2_core.select.features import FEATURES, asked_for, features
from wamdiff2_core.select.learned import LearnedScorer
from wamdiff2_core.select.propose import ProposalConfig, paced, propose
from wamdiff2_core.select.rules import Surroundings, Thing, rule_scores
from wamdiff2_core.select.train import COLUMNS, train
from wamdiff2_core.tasks.plan import PlanLimits

DECODING = DecodingConfig(block_size=16, steps=3, threshold=0.5)
STRAIGHT = np.column_stack([np.arange(1, 9) * 4.0, np.zeros(8)])
EGO = EgoState((8.0, 0.0))


@pytest.fixture(scope="module")
def driver(ours: Path) -> Driver:
    made = Driver.from_checkpoint(ours, decoding=DECODING)
    made.limits = PlanLimits(1e6, 1e6)  # random weights plan nothing that a car could drive
    return made


@pytest.fixture(scope="module")
def scene() -> Scene:
    random = np.random.default_rng(0)
    images = {name: random.integers(0, 255, (96, 128, 3), dtype=np.uint8) for name in ("cam_front", "cam_front_left")}
    return Scene(images, "turn left in 20 m", EGO)


def texts(plans: object) -> list[str]:
    return [one.text for one in plans]  # type: ignore[attr-defined]


def test_candidates_are_what_calls_of_their_own_give(driver: Driver, scene: Scene) -> None:
    config = ProposalConfig(2, (0.7, 1.5), ("follow the road",), (1, 8), (1.0, 0.0), seed=3)
    made = propose(driver, scene, config)
    assert made.sources == (
        "plain", "T=0.7", "T=0.7", "T=1.5", "T=1.5", "words: follow the road", "B=1", "B=8", "pace 1", "pace 0",
    )  # fmt: skip
    assert config.count == len(made.plans) == 10 and made.valid == list(range(10))
    assert made.plans[0].text == driver.plan(scene).text
    drawn = {heat: texts(driver.plan_candidates(scene, 5, heat, seed=3)) for heat in (0.7, 1.5)}
    assert texts(made.plans[1:5]) == [*drawn[0.7][1:3], *drawn[1.5][3:5]]
    assert made.plans[5].text == driver.plan(replace(scene, instruction="follow the road")).text
    for place, size in ((6, 1), (7, 8)):
        driver.decoding = replace(DECODING, block_size=size, steps=min(3, size))
        assert made.plans[place].text == driver.plan(scene).text
    driver.decoding = DECODING
    assert made.plans[8].points == pytest.approx(made.plans[0].points)
    assert made.cost.forwards > 0 and len(made.tokens) == len(made.rests) == 8


def test_paces_keep_to_the_path() -> None:
    slower, faster = paced(STRAIGHT, 0.5), paced(STRAIGHT, 1.5)
    assert (slower[:, 1] == 0).all() and np.diff(slower[:, 0])[2:] == pytest.approx(2.0)
    assert np.diff(faster[:, 0])[2:] == pytest.approx(6.0) and faster[-1, 0] > STRAIGHT[-1, 0]
    assert np.diff(paced(STRAIGHT, 0.0)[:, 0])[2:] == pytest.approx(0.0)


def test_a_scene_that_cannot_be_asked_fails_in_every_candidate(driver: Driver) -> None:
    made = propose(driver, Scene({}), ProposalConfig(2))
    assert len(made.plans) == 3 and all(isinstance(one, Failure) for one in made.plans)
    selected = choose.Selector("learned", ProposalConfig(2)).plan(driver, Scene({}))
    assert isinstance(selected.plan, Failure) and selected.index == 0


@pytest.mark.parametrize(
    "values", [{"drawn": -1}, {"drawn": 70}, {"drawn": 1, "temperatures": (0.0,)}, {"paces": (9.0,)}, {"seed": -1}]
)
def test_settings_out_of_range_are_refused(values: dict) -> None:
    with pytest.raises(ConfigError):
        ProposalConfig(**values)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_remasked_likelihood_equals_recomputation_without_cache(driver: Driver, scene: Scene, stride: int) -> None:
    made = propose(driver, scene, ProposalConfig(1, (1.0,), seed=1))
    scaffold = driver.scaffold("plan")
    got = remasked_log_likelihood(driver.decoder, made.prefix, made.rests, made.tokens, 16, scaffold, stride)
    pixels, grid = driver.pixels(scene)
    ids = torch.tensor(driver.prompt(scene, "plan", grid).ids)
    table = scaffold.table(driver.loaded.vocab_size, torch.device("cpu"))
    for value, answer in zip(got, made.tokens, strict=True):
        true, total = torch.tensor(answer), 0.0
        for turn in range(stride):
            for start in range(0, len(true), 16):
                block = true[start : start + 16].clone()
                asked = [k for k in range(len(block)) if (start + k) % stride == turn and scaffold.given[start + k] < 0]
                block[asked] = driver.loaded.mask_token_id
                logits = block_logits(driver.loaded, ids, true[:start], block, pixels, grid, 16)
                for k in asked:
                    allowed = logits[k].masked_fill(~table[start + k], -torch.inf)
                    total += float(torch.log_softmax(allowed, -1)[true[start + k]])
        assert value == pytest.approx(total, abs=0.05)


@pytest.mark.parametrize("scorer", choose.SCORERS)
def test_every_scorer_chooses_the_candidate_it_scores_best(driver: Driver, scene: Scene, scorer: str) -> None:
    camera = Camera("cam_front", 640, 384, 70.0, (2.2, 0.0, 1.6))
    seen = Detections((Box("car", (400, 400, 600, 700)),))
    selector = choose.Selector(scorer, ProposalConfig(2, paces=(0.7,), seed=0), camera)
    selected = selector.plan(driver, scene, seen=seen)
    assert isinstance(selected.plan, Plan) and selected.plan.cost.forwards > 0
    assert selected.index == int(np.nanargmax(selected.scores))
    assert len(selected.scores) == 4 and np.isfinite(selected.scores[:3]).all()
    with pytest.raises(ConfigError, match="scorer"):
        choose.Selector("guess", ProposalConfig())


def test_rules_prefer_the_plan_that_stops_before_a_car() -> None:
    plans = np.stack([STRAIGHT, paced(STRAIGHT, 0.3), np.full((8, 2), np.nan)])
    car = Thing(26.0, 0.0, 0.0, 0.0, 4.5, 1.9)
    blocked = rule_scores(plans, EGO, Surroundings((car,)))
    assert blocked[0] == 0.0 < blocked[1] and np.isnan(blocked[2])
    free = rule_scores(plans, EGO, Surroundings())
    assert free[0] > free[1]
    driving_on = rule_scores(plans, EGO, Surroundings((replace(car, speed=12.0),)))
    assert driving_on[0] > driving_on[1]
    with pytest.raises(DataError, match="got none"):
        rule_scores(plans[2:], EGO, Surroundings())


def test_rules_keep_to_the_road_that_is_known() -> None:
    road = np.array([[-20.0, -2.0], [80.0, -2.0], [80.0, 2.0], [-20.0, 2.0]])
    leaving = np.column_stack([STRAIGHT[:, 0], np.linspace(0.0, 6.0, 8)])
    scores = rule_scores(np.stack([STRAIGHT, leaving]), EGO, Surroundings(drivable=(road,)))
    assert scores[0] > 0.0 == scores[1]


@pytest.mark.parametrize("yaw", [0.0, 0.9])
@pytest.mark.parametrize("ahead, left", [(10.0, 0.0), (25.0, 4.0), (40.0, -6.0)])
def test_boxes_stand_where_the_ground_is_seen(ahead: float, left: float, yaw: float) -> None:
    camera = Camera("cam_front", 640, 384, 70.0, (2.2, 0.0, 1.6), yaw)
    column = (320.0 - camera.focal_px * left / ahead) / 640.0 * 1000.0
    row = (192.0 + camera.focal_px * 1.6 / ahead) / 384.0 * 1000.0
    box = Box("pedestrian", (round(column) - 5, 300, round(column) + 5, round(row)))
    (thing,) = ground.things_of([box, Box("light", box.xyxy), replace(box, camera="cam_back")], camera)
    middle = ahead + 0.25  # the lower edge is the near side
    expected = (2.2 + middle * np.cos(yaw) - left * np.sin(yaw), middle * np.sin(yaw) + left * np.cos(yaw))
    assert (thing.x, thing.y) == pytest.approx(expected, rel=0.03, abs=0.3)
    assert ground.things_of([Box("car", (100, 200, 200, 450)), Box("car", (1, 2, 3, 999))], camera) == ()


def collected(count: int, seed: int) -> figures.Collected:
    """Frames whose second candidate is off the road where it swerves."""
    random = np.random.default_rng(seed)
    points = np.repeat(STRAIGHT[None, None], count, axis=0).repeat(2, axis=1)
    swerves = random.random(count) < 0.5
    points[np.arange(count), swerves.astype(int), :, 1] += np.linspace(0.0, 8.0, 8)
    scores = np.ones((count, 2, len(COLUMNS) + 2))  # and both scores
    for column in (1, -2, -1):
        scores[np.arange(count), swerves.astype(int), column] = 0.0
    ones = np.ones((count, 2))
    return figures.Collected(
        points, np.ones((count, 2, 8)), -ones, np.tile([8.0, 0.0, 0.0], (count, 1)), ("follow the road",) * count,
        scores, scores[:, 0], (*COLUMNS, "v11_score", "v2_score"), ("plain", "pace 0.7"), {},
    )  # fmt: skip


def test_a_scorer_learns_what_is_off_the_road(tmp_path: Path) -> None:
    train([collected(256, 0)], hidden=16, epochs=120).save(tmp_path / "scorer.npz")
    scorer, held = LearnedScorer.load(tmp_path / "scorer.npz"), collected(50, 1)
    asked = np.array([asked_for(text) for text in held.instruction])
    scores = scorer.scores(features(held.points, held.sure, held.likelihood, held.ego, asked))
    picked = figures.choose(scores, np.ones(scores.shape, dtype=bool))
    assert (held.score("v11_dac")[np.arange(50), picked] == 1.0).all()
    with pytest.raises(DataError, match="128 frames or more"):
        train([collected(5, 0)])


def test_the_shipped_scorer_loads_and_a_broken_one_is_named(tmp_path: Path) -> None:
    scorer = LearnedScorer.load()
    scores = scorer.scores(np.zeros((2, 3, FEATURES), np.float32))
    assert scores.shape == (2, 3) and ((scores > 0) & (scores < 1)).all()
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    np.savez(tmp_path / "other.npz", mean=np.zeros(3))
    bad = replace_field(scorer, "b1", np.full_like(scorer.b1, np.nan))
    for make in (
        lambda: LearnedScorer.load(tmp_path / "cut.npz"),
        lambda: LearnedScorer.load(tmp_path / "other.npz"),
        bad,
    ):
        with pytest.raises(CheckpointError, match="scorer"):
            make()


def replace_field(scorer: LearnedScorer, name: str, value: np.ndarray) -> Callable[[], LearnedScorer]:
    return lambda: replace(scorer, **{name: value})


def test_figures_report_plain_selected_and_best_apart(tmp_path: Path) -> None:
    data = replace(collected(40, 2), sources=("plain", "T=0.5"))
    data.scores[0, 0] = np.nan  # no plan
    report = figures.figures(data, {"wrong": -data.score("v11_score")}, {"pair": data.sources, "none": ("B=8",)})
    assert report["plain_failed"] == 1 and set(report["pools"]) == {"pair"}
    row = report["pools"]["pair"]
    best = np.nan_to_num(data.score("v11_score")).max(axis=1).mean()
    assert row["oracle"]["v11_score"] == pytest.approx(100.0 * best, abs=0.01)
    assert row["oracle"]["v11_score"] > report["plain"]["v11_score"] > row["wrong"]["v11_score"]
    assert row["oracle"]["gain"] == pytest.approx(row["oracle"]["v11_score"] - report["plain"]["v11_score"], abs=0.02)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="collected candidates"):
        figures.Collected.read(tmp_path / "bad.npz")


def test_recorded_surroundings_are_those_of_the_scene_now() -> None:
    import gzip
    import json

    from wamdiff2_core.evaluate.navsim import read_scene

    golden = Path(__file__).parents[1] / "golden" / "navsim" / "scenes.json.gz"
    with gzip.open(golden, "rt", encoding="utf-8") as file:
        scenes = {one["id"]: one for one in json.load(file)["scenes"]}
    record = scenes["nc_front_slow_lead"]
    world = rules.recorded(read_scene(record))
    present = [one for one in record["agents"] if one["track"][0] is not None]
    assert len(world.things) == len(present) + len(record["static_objects"])
    assert world.things[0].speed == pytest.approx(present[0]["track"][0][3], abs=0.3)
    assert len(world.drivable) >= 1 and len(world.route) == len(record["route_centerline"])


def test_the_benchmark_of_candidates_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # the package lies beside the installed ones
    from benchmarks import candidates

    assert candidates.main(["figures", str(tmp_path / "none.npz")]) == 1
    assert str(tmp_path / "none.npz") in capsys.readouterr().err
    with pytest.raises(SystemExit):
        candidates.main(["latency", str(tmp_path)])
    assert "expected 2 path(s)" in capsys.readouterr().err
