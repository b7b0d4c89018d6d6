"""With a scorer, the plan that a node drives is the best of plan and candidates; the others are told."""

from __future__ import annotations

import numpy as np
import pytest

from wamdiff2_core import DecodingConfig
from wamdiff2_core.scene import Answer, Cost, EgoState, Failure, FailureKind, Plan, Scene
from wamdiff2_core.select import choose
from wamdiff2_core.select.propose import PACES, Proposals
from wamdiff2_ros import parameters
from wamdiff2_ros.asking import Asking

POINTS = np.column_stack([np.arange(1, 9) * 2.0, np.zeros(8)])
SCENE = Scene({}, "follow the road", EgoState((4.0, 0.0)))


class Answers:
    """A driver that is asked for everything but the plan."""

    decoding = DecodingConfig()

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def answer(self, scene: Scene, tasks: tuple[str, ...]) -> dict:
        self.asked.append(tasks)
        return {task: Answer("?", "yes") if task == "ask" else Plan(POINTS, np.ones(8)) for task in tasks}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list:
    """Configurations that candidates were asked for with; the second of three is scored best, the third is no plan."""
    configs: list = []

    def selected(self: choose.Selector, driver: object, scene: Scene) -> choose.Selected:
        configs.append(self.config)
        plans = (Plan(POINTS, np.ones(8), log_likelihood=-3.0), Plan(0.9 * POINTS, np.ones(8)),
                 Failure(FailureKind.PARSE, "no"))  # fmt: skip
        proposals = Proposals(plans, ("plain", "T=0.5", "T=0.5"), Cost())
        return choose.Selected(plans[1], 1, proposals, np.array([0.1, 0.9, np.nan]), 1.0, 0.1)

    monkeypatch.setattr(choose.Selector, "plan", selected)
    return configs


def test_the_best_candidate_is_the_plan_and_the_others_are_told(made: list) -> None:
    driver = Answers()
    settings = parameters.Settings(candidates=2, candidate_temperature=0.5, scorer="learned")
    answered = Asking(driver).answer(SCENE, ("plan", "ask"), settings)
    assert answered.results["plan"].points == pytest.approx(0.9 * POINTS)
    assert isinstance(answered.results["ask"], Answer) and driver.asked == [("ask",)]
    assert [one.log_likelihood for one in answered.drawn.plans] == [-3.0] and answered.drawn.withheld == 1
    (config,) = made
    assert (config.drawn, config.temperatures, config.paces) == (2, (0.5,), PACES)


def test_without_a_scorer_the_driver_plans_alone(made: list) -> None:
    driver = Answers()
    answered = Asking(driver).answer(SCENE, ("plan",), parameters.Settings(candidates=2))
    assert driver.asked == [("plan",)] and made == [] and answered.drawn is None


def test_an_error_of_a_scorer_is_a_failed_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.Selector, "plan", lambda *_: (_ for _ in ()).throw(ValueError("odd")))
    answered = Asking(Answers()).answer(SCENE, ("plan",), parameters.Settings(scorer="likelihood"))
    assert isinstance(answered.results["plan"], Failure) and "odd" in answered.results["plan"].message


def test_parameters_name_scorers_that_there_are() -> None:
    assert set(parameters.SCORERS) - {"none"} == set(choose.SCORERS) - {"rules"}
    with pytest.raises(parameters.ConfigError, match="scorer"):
        parameters.Settings(scorer="best")
    with pytest.raises(parameters.ConfigError, match="candidates"):
        parameters.Settings(scorer="learned", candidates=40)
