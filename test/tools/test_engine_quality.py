"""The quality of the engine's 8-bit and bfloat16 answers: its arithmetic, and where two answers are said to part."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import engine_quality  # noqa: E402
from benchmarks.engine_quality import SETTINGS, Answer, scored  # noqa: E402
from benchmarks.quality_figures import Parting, mean_error, pair_figures, parting, partings, way_figures  # noqa: E402
from benchmarks.quality_margins import Asked, margin, probabilities  # noqa: E402
from benchmarks.quality_ties import leads  # noqa: E402
from benchmarks.quality_ways import SIZES, eight_bits  # noqa: E402
from wamdiff2_core.decode.engine.decoder import EngineDecoder  # noqa: E402
from wamdiff2_core.driver import Driver  # noqa: E402
from wamdiff2_core.scene import EgoState, Scene  # noqa: E402

RANKS = (0, 1, 2, 0, 1, 2, 0, 1)
LINE = np.column_stack([np.arange(1.0, 9.0), np.zeros(8)])


def test_answers_part_first_in_the_order_of_decoding() -> None:
    one = [5, 5, 5, 5, 5, 5, 5, 5]
    assert parting(one, one, RANKS, 4) is None
    # The place of rank 1 comes later in the answer than the one of rank 2 and is decided before it.
    assert parting(one, [5, 5, 6, 5, 6, 5, 5, 5], RANKS, 8) == Parting(0, 1, (4,))
    assert parting(one, [5, 5, 6, 5, 6, 5, 5, 5], RANKS, 4) == Parting(0, 2, (2,))
    assert parting(one, [5, 6, 5, 5, 6, 5, 5, 6], RANKS, 4) == Parting(0, 1, (1,))
    assert parting(one, [5, 5, 5, 5, 6, 6, 5, 6], RANKS, 4) == Parting(1, 1, (4, 7))
    with pytest.raises(ValueError, match="one length"):
        parting(one, one[:-1], RANKS, 4)


def test_errors_of_means_leave_out_what_is_not_known() -> None:
    told = mean_error([1.0, 3.0, float("nan"), 5.0])
    assert told == {"mean": 3.0, "error": pytest.approx(2.0 / 3**0.5), "frames": 3}
    assert mean_error([float("nan")]) == {"mean": None, "error": None, "frames": 0}
    assert mean_error([2.0]) == {"mean": 2.0, "error": None, "frames": 1}


def test_ways_and_pairs_count_failures_and_pair_by_frame() -> None:
    reference = [
        Answer((1, 2), LINE, "", 9, 1.0, 0.5),
        Answer((1, 3), LINE, "", 9, 0.5, 0.5),
        Answer((1, 4), LINE, "", 9, 0.25, 0.0),
    ]
    other = [
        Answer((1, 2), LINE, "", 9, 1.0, 0.5),
        Answer((1, 5), LINE + (0.0, 1.0), "", 12, 1.0, 0.5),
        Answer((1, 6), None, "range", 9),
    ]
    truth = [LINE, LINE + (0.0, 3.0), LINE]
    way = way_figures(other, truth)
    assert way["pdms"]["mean"] == pytest.approx(200.0 / 3) and way["failures"] == {"range": 1}
    assert way["l2_m"]["mean"] == pytest.approx(1.0) and way["l2_m"]["frames"] == 2 and way["forwards"] == 10.0
    pair = pair_figures(reference, other, truth, [0.01, 0.3])
    assert pair["equal_tokens"] == pair["equal_plans"] == pytest.approx(1 / 3)
    assert pair["failures_of_one_alone"] == 1
    assert pair["l2_to_reference_m"]["mean"] == 0.5 and pair["l2_to_reference_m"]["most"] == 1.0
    assert pair["l2_gain_m"]["mean"] == pytest.approx(-0.5)  # 3 m off became 2 m; the failure has no distance
    assert pair["pdms_gain"]["mean"] == pytest.approx((0.0 + 50.0 - 25.0) / 3)
    assert pair["pdms_gain"]["error"] == pytest.approx(np.std([0.0, 50.0, -25.0], ddof=1) / 3**0.5)
    assert pair["partings"]["count"] == 2 and pair["partings"]["ties"] == 1 and pair["partings"]["most"] == 0.3
    assert partings([]) == {"count": 0, "ties": 0, "tie_below": 0.02}


def test_scores_go_to_the_answers_they_belong_to(monkeypatch) -> None:
    """A stand-in that scores a plan by where it ends; a failure between two plans has none and keeps 0."""

    def ends(scene, plans: np.ndarray) -> np.ndarray:
        told = np.full((len(plans), len(engine_quality.SCORES)), np.nan)
        told[:, engine_quality.SCORES.index("v11_score")] = plans[:, -1, 0] / 100
        told[:, engine_quality.SCORES.index("v2_score")] = plans[:, -1, 0] / 1000
        return told

    monkeypatch.setattr(engine_quality, "plan_scores", ends)
    scene = SimpleNamespace(plan=np.full((8, 3), 50.0))
    answers = [Answer((1,), LINE), Answer((2,), None, "range"), Answer((3,), 2 * LINE)]
    near, failed, far, drive = scored(scene, 2.0, answers)  # type: ignore[arg-type]
    assert near.pdms == pytest.approx(0.08, rel=0.1) and near.epdms == pytest.approx(near.pdms / 10)
    assert far.pdms == pytest.approx(0.16, rel=0.1) and far.tokens == (3,)
    assert failed == answers[1] and failed.pdms == 0.0
    assert (drive.pdms, drive.epdms) == (0.5, 0.05)


@pytest.fixture(scope="module")
def driver() -> Driver:
    return Driver.from_checkpoint(ROOT / "checkpoints" / "tiny", dtype="float32")


@pytest.fixture(scope="module")
def asked(driver) -> Asked:
    random = np.random.default_rng(3)
    sizes = {"cam_front": (192, 320), "cam_front_left": (96, 160), "cam_front_right": (96, 160)}
    images = {name: random.integers(0, 256, (*size, 3), dtype=np.uint8) for name, size in sizes.items()}
    scene = Scene(images, "turn left in 40 m", EgoState((6.0, 0.0)))
    pixels, grid = driver.pixels(scene)
    return Asked(torch.tensor(driver.prompt(scene, "plan", grid).ids), pixels, grid)


def test_probabilities_where_answers_part_are_those_of_the_decoder(driver, asked) -> None:
    """The state put together again gives each token the probability that it had when it was kept."""
    config, scaffold = SETTINGS[32], driver.scaffold("plan")
    out = driver.decoder.generate(asked.ids, asked.pixels, asked.grid, config, scaffold)
    seen = 0
    for block, rank in ((0, 0), (1, 1), (2, 2)):
        chances = probabilities(driver, asked, out.tokens, block, rank, config)
        for place in range(32 * block, min(32 * block + 32, len(out.tokens))):
            if scaffold.ranks[place] == rank and scaffold.given[place] < 0:
                best = chances[place % 32]
                assert int(best.argmax()) == out.tokens[place]
                assert float(best.max()) == pytest.approx(out.confidences[place], abs=1e-4)
                seen += 1
    assert seen >= 20
    assert margin(driver, asked, out.tokens, out.tokens, config) is None
    place = next(k for k, given in enumerate(scaffold.given) if given < 0)
    other = list(out.tokens)
    other[place] = next(token for token in scaffold.allowed[place] if token != out.tokens[place])
    chances = probabilities(driver, asked, out.tokens, 0, scaffold.ranks[place], config)[place]
    expected = float(chances[out.tokens[place]] - chances[other[place]])
    assert expected > 0.0 and margin(driver, asked, out.tokens, other, config) == pytest.approx(expected)


def test_every_open_place_has_a_lead_and_the_surest_are_those_of_the_decoder(driver, asked) -> None:
    config, scaffold = SETTINGS[32], driver.scaffold("plan")
    out = driver.decoder.generate(asked.ids, asked.pixels, asked.grid, config, scaffold)
    found = list(leads(driver, asked, out.tokens, config))
    chances = [sure for sure, given in zip(out.confidences, scaffold.given, strict=False) if given < 0]
    assert len(found) == len(chances) == 72 and min(found) >= 0.0
    # All but the best share what is left: a lead is at least 2 p - 1 and at most p.
    for lead, sure in zip((min(found), max(found)), (min(chances), max(chances)), strict=True):
        assert 2 * sure - 1 - 1e-4 <= lead <= sure + 1e-4


def test_widened_weights_are_the_plain_twins(driver, asked) -> None:
    scaffold = driver.scaffold("plan")
    ways = (eight_bits(driver.loaded), EngineDecoder(driver.loaded, SIZES, "torch_fp8"), driver.decoder)
    got, twin, plain = (one.generate(asked.ids, asked.pixels, asked.grid, SETTINGS[32], scaffold) for one in ways)
    assert got.tokens == twin.tokens and got.confidences == twin.confidences
    assert got.confidences != plain.confidences
