"""Answer grammars: what is written reads back, and no text whatever raises or slips through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.scene import Answer, Box, Command, Detections, EgoState, Failure, FailureKind, Plan, Scene
from wamdiff2_core.tasks import ask, detect, plan
from wamdiff2_core.tasks.grammar import AnswerText
from wamdiff2_core.tasks.navigation import navigation_text, parse_navigation

HALF_UNIT_M = 0.005 + 1e-9
ANYTHING = st.one_of(st.text(max_size=150), st.text(alphabet='0123456789.+- ,;carlight[]{}":\n٣²eEnaif', max_size=150))


def xs_and_ys(low: float) -> st.SearchStrategy[np.ndarray]:
    x, y = (arrays(np.float64, 8, elements=st.floats(a, 99.99)) for a in (low, -99.99))
    return st.builds(lambda a, b: np.clip(np.stack([a, b], 1), (low, -99.99), 99.99), x, y)


@given(xs_and_ys(0.0))
def test_plan_fixed_reads_back(points: np.ndarray) -> None:
    text = plan.serialise(points)
    result = plan.parse(text)
    assert len(text) == 95
    assert isinstance(result, Plan)
    assert np.abs(result.points - points).max() <= HALF_UNIT_M
    assert plan.serialise(result.points) == text  # one text per value: no -00.00


@given(xs_and_ys(-99.99))
def test_plan_upstream_reads_back(points: np.ndarray) -> None:
    result = plan.parse(plan.serialise(points, "upstream"), "upstream")
    assert isinstance(result, Plan)
    assert np.abs(result.points - points).max() <= HALF_UNIT_M


def test_plan_of_upstreams_sample() -> None:
    text = "2.26,-0.17,4.43,-0.70,6.52,-1.55,8.48,-2.64,10.28,-3.88,11.99,-5.25,13.76,-6.83,15.59,-8.59"
    result = plan.parse(text, "upstream")
    assert isinstance(result, Plan)
    assert result.points.shape == (8, 2) and result.points[7].tolist() == [15.59, -8.59]
    assert plan.serialise(result.points, "upstream") == text


def test_plan_clamps_what_the_fixed_form_cannot_say() -> None:
    points = np.zeros((8, 2))
    points[0] = (-1.0, 3.0)
    points[7] = (120.0, -100.5)
    assert plan.clamped(points) == 2
    result = plan.parse(plan.serialise(points))
    assert isinstance(result, Plan)
    assert result.points[0].tolist() == [0.0, 3.0] and result.points[7].tolist() == [99.99, -99.99]


GOOD = " ".join(["02.26-00.17"] * 8)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        GOOD[:-1],
        GOOD + " ",
        " " + GOOD,
        GOOD + " 02.26-00.17",
        GOOD.replace(" ", "  "),
        GOOD.replace(".", ",", 1),
        GOOD.replace("0", "٠", 1),
        GOOD.replace("02", "²2", 1),
        GOOD.replace("02.26", "nan  ", 1),
        GOOD.replace("02.26", "1e+01", 1),
        GOOD.replace("-", "−", 1),
        GOOD.replace("02", "+2", 1),
        GOOD + "\n",
        GOOD.replace(" ", "\u00a0", 1),
    ],
)
def test_plan_fixed_is_strict(text: str) -> None:
    result = plan.parse(text)
    assert isinstance(result, Failure) and result.kind is FailureKind.PARSE and result.text == text


@pytest.mark.parametrize("bad", ["nan", "inf", "1e3", "٣", "0x10", "1_0", "", "--1", "1.", ".5", "12345", "1 "])
def test_plan_upstream_is_strict(bad: str) -> None:
    result = plan.parse(",".join(["1.00"] * 7 + [bad] + ["1.00"] * 8), "upstream")
    assert isinstance(result, Failure) and result.kind is FailureKind.PARSE


@pytest.mark.parametrize("count", [0, 1, 14, 15, 17, 18])
def test_plan_upstream_wants_sixteen_numbers(count: int) -> None:
    assert isinstance(plan.parse(",".join(["1.00"] * count), "upstream"), Failure)


def test_plan_upstream_range() -> None:
    result = plan.parse(",".join(["9999.00"] * 16), "upstream")
    assert isinstance(result, Failure) and result.kind is FailureKind.RANGE


def test_plan_confidence_is_of_its_digits() -> None:
    tokens = tuple((i, i + 1, 0.5 if i < 11 and c not in ". " else 1.0) for i, c in enumerate(GOOD))
    result = plan.parse(AnswerText(GOOD, tokens))
    assert isinstance(result, Plan)
    assert result.confidence.tolist() == [0.5] + [1.0] * 7


@pytest.mark.parametrize(
    ("points", "ego", "fine"),
    [
        (np.stack([np.arange(1, 9) * 4.0, np.zeros(8)], 1), 8.0, True),
        (np.zeros((8, 2)), 8.0, True),  # an emergency stop is a plan
        (np.stack([np.arange(1, 9) * 30.0, np.zeros(8)], 1), 30.0, False),
        (np.stack([np.arange(1, 9) * 4.0 + 20.0 * (np.arange(8) == 3), np.zeros(8)], 1), 8.0, False),
    ],
)
def test_plan_plausibility(points: np.ndarray, ego: float, fine: bool) -> None:
    assert (plan.implausible(points, EgoState((ego, 0.0)), plan.PlanLimits()) is None) == fine


BOXES = st.lists(
    st.builds(
        lambda label, x, y, w, h: Box(label, (x, y, min(999, x + w), min(999, y + h))),
        st.sampled_from(detect.LABELS),
        st.integers(0, 998),
        st.integers(0, 998),
        st.integers(1, 999),
        st.integers(1, 999),
    ),
    max_size=6,
)


@given(BOXES, st.sampled_from(detect.FORMS))
def test_boxes_read_back(boxes: list[Box], form: str) -> None:
    result = detect.parse(detect.serialise(boxes, form), form)
    assert isinstance(result, Detections)
    assert sorted((b.label, b.xyxy) for b in result.boxes) == sorted((b.label, b.xyxy) for b in boxes)
    areas = [(b.xyxy[2] - b.xyxy[0]) * (b.xyxy[3] - b.xyxy[1]) for b in result.boxes]
    assert areas == sorted(areas, reverse=True)


def test_boxes_at_the_border_and_too_many() -> None:
    boxes = [Box("car", (999, 0, 1000, 1000))] + [Box("truck", (0, 0, 10 + i, 10)) for i in range(9)]
    result = detect.parse(detect.serialise(boxes))
    assert isinstance(result, Detections)
    assert len(result.boxes) == detect.MAX_BOXES
    assert all(b.xyxy[0] < b.xyxy[2] <= 999 for b in result.boxes)
    assert any(b.xyxy == (998, 0, 999, 999) for b in result.boxes)


@pytest.mark.parametrize(
    ("text", "form", "kind"),
    [
        ("car 300002 100400;", "fixed", FailureKind.RANGE),
        ("car 100002 100400;", "fixed", FailureKind.RANGE),
        ("bus 100002 200400;", "fixed", FailureKind.PARSE),
        ("car 100002 200400", "fixed", FailureKind.PARSE),
        ("car 100002 200400; ", "fixed", FailureKind.PARSE),
        ("car 10000٢ 200400;", "fixed", FailureKind.PARSE),
        ("car 100002 200400;" * 7, "fixed", FailureKind.PARSE),
        ("", "qwen3vl_json", FailureKind.PARSE),
        ("[", "qwen3vl_json", FailureKind.PARSE),
        ('[{"bbox_2d": [1, 2, 3], "label": "car"}]', "qwen3vl_json", FailureKind.PARSE),
        ('[{"bbox_2d": [1, 2, 3, NaN], "label": "car"}]', "qwen3vl_json", FailureKind.PARSE),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "car"},]', "qwen3vl_json", FailureKind.PARSE),
        (
            '[{"bbox_2d": [1, 2, 3, 4], "label": "car"} {"bbox_2d": [1, 2, 3, 4], "label": "car"}]',
            "qwen3vl_json",
            FailureKind.PARSE,
        ),
        ('[{"bbox_2d": [1, 2, 3, 1001], "label": "car"}]', "qwen3vl_json", FailureKind.RANGE),
        ('[{"bbox_2d": [3, 2, 1, 4], "label": "car"}]', "qwen3vl_json", FailureKind.RANGE),
    ],
)
def test_boxes_are_strict(text: str, form: str, kind: FailureKind) -> None:
    result = detect.parse(text, form)
    assert isinstance(result, Failure) and result.kind is kind


def test_an_impossible_box_is_left_out_and_counted() -> None:
    """One box whose digits do not fit takes nothing from the others; with none left the answer is refused."""
    for text, form in (
        ("car 300002 100400;car 100002 200400;car 100002 100400;", "fixed"),
        ('[{"bbox_2d": [3, 2, 1, 4], "label": "car"}, {"bbox_2d": [100, 2, 200, 400], "label": "car"}, '
         '{"bbox_2d": [1, 2, 3, 1001], "label": "car"}]', "qwen3vl_json"),
    ):  # fmt: skip
        result = detect.parse(text, form)
        assert isinstance(result, Detections)
        assert [box.xyxy for box in result.boxes] == [(100, 2, 200, 400)] and result.dropped == 2
    whole = detect.parse("car 100002 200400;")
    assert isinstance(whole, Detections) and whole.dropped == 0


def test_boxes_in_qwens_fence_and_nothing_there() -> None:
    fenced = detect.parse('```json\n[\n\t{"bbox_2d": [1, 2, 30, 40], "label": "traffic light"}\n]\n```', "qwen3vl_json")
    assert isinstance(fenced, Detections) and fenced.boxes[0].label == "traffic light"
    for text, form in (("", "fixed"), ("[]", "qwen3vl_json"), ("[ ]", "qwen3vl_json")):
        nothing = detect.parse(text, form)
        assert isinstance(nothing, Detections) and nothing.boxes == ()


def test_a_long_run_of_white_space_is_read_at_once() -> None:
    # Looked at from each of its places again, this would take longer than a test may.
    assert isinstance(detect.parse("```json" + " \n" * 1_000_000, "qwen3vl_json"), Failure)


def test_box_confidence_is_its_own() -> None:
    text = "car 001002 300400;light 001002 300400;"
    tokens = tuple((i, i + 1, 0.25 if i >= 18 else 0.75) for i in range(len(text)))
    result = detect.parse(AnswerText(text, tokens))
    assert isinstance(result, Detections)
    assert [box.confidence for box in result.boxes] == [0.75, 0.25]


@settings(max_examples=400)
@given(ANYTHING)
def test_any_text_gives_a_value_or_a_typed_failure(text: str) -> None:
    for module, kinds in ((plan, Plan), (detect, Detections), (ask, Answer)):
        for form in module.FORMS:
            assert isinstance(module.parse(text, form), (kinds, Failure))
    parse_navigation(text)


@given(st.binary(max_size=60), st.integers(0, 94))
def test_a_damaged_plan_is_no_other_plan_by_luck(noise: bytes, at: int) -> None:
    text = GOOD[:at] + noise.decode("utf-8", errors="replace") + GOOD[at:]
    result = plan.parse(text)
    assert isinstance(result, Failure) or text == GOOD


@given(st.sampled_from(Command), st.floats(-20, 80))
def test_commands_read_back(command: Command, distance: float) -> None:
    said = parse_navigation(navigation_text(command, distance))
    assert said is (command if distance <= 50 else Command.FOLLOW)


def test_navigation_words() -> None:
    assert navigation_text(Command.LEFT, 41.0) == "turn left in 40 m"
    assert navigation_text(Command.RIGHT, -3.0) == "turn right now"
    assert navigation_text(Command.STRAIGHT, 50.0) == "go straight in 50 m"
    assert parse_navigation(" Turn left ") is Command.LEFT
    assert parse_navigation("turn left in ٤٠ m") is None and parse_navigation("turn around") is None


def test_prompts_say_what_they_should() -> None:
    scene = Scene({}, "turn left in 40 m", EgoState((5.123, -0.001), (0.31, -0.05)), "what is ahead?")
    assert plan.prompt(scene) == "velocity +05.12 +00.00 acceleration +00.31 -00.05; turn left in 40 m; plan"
    assert ask.prompt(scene) == "what is ahead?; answer"
    assert detect.prompt(scene) == "detect"
    assert "The navigation information is: left\n" in plan.upstream_prompt(scene)
    assert "velocity is: (5.12,0.00) and current accelerate is: (0.31,-0.05)\n" in plan.upstream_prompt(scene)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 100.5])
def test_prompts_refuse_impossible_motion(value: float) -> None:
    with pytest.raises(DataError, match="finite"):
        plan.prompt_text(EgoState((value, 0.0)), "follow the road")


def test_wrong_use_is_an_error() -> None:
    with pytest.raises(ConfigError, match="fixed, upstream"):
        plan.parse(GOOD, "xml")
    with pytest.raises(DataError, match="question"):
        ask.prompt(Scene({}))
    with pytest.raises(DataError, match="shape"):
        plan.serialise(np.zeros((7, 2)))
    with pytest.raises(DataError, match="x1 < x2"):
        detect.serialise([Box("car", (5, 5, 5, 9))])
    with pytest.raises(DataError, match="label"):
        detect.serialise([Box("bus", (5, 5, 15, 9))])
