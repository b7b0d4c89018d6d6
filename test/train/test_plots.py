"""Pictures of a run: what its files hold is on them, whatever the files hold."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from micro import micro_recipe
from PIL import Image

from wamdiff2_core.distill import plots
from wamdiff2_core.distill.csv_file import GrowingCsv
from wamdiff2_core.errors import DataError

PHASES = [{"until": 0.5, "blocks": {4: 1.0}}, {"until": 1.0, "blocks": {8: 0.5, 32: 0.5}}]


def write_run(out, steps: int = 40, evaluations: int = 2) -> None:
    log, found = GrowingCsv(out / "log.csv"), GrowingCsv(out / "evaluation.csv")
    log.begin(0)
    found.begin(0)
    for step in range(1, steps + 1):
        parts = {"plan_ar": 8.0 / step, "plan_distill": 0.3 / step, "ask_ar": 4.0 / step}
        log.add({"step": step, "progress": step / steps, "lr": 1e-3 / step, "loss": 9.0 / step, **parts,
                 "tokens_per_s": 100_000 + step})  # fmt: skip
    for step in range(1, evaluations + 1):
        found.add({"step": 10 * step, "frames/ade_m": 3.0 / step, "drives/driving_score": 10.0 * step})


def drawn(panels) -> dict[str, Axes]:
    """Panels by their titles."""
    seen = {}
    for draw in panels:
        axes = Figure().add_subplot()
        draw(axes)
        seen[axes.get_title(loc="left")] = axes
    return seen


def lines(axes: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): line.get_xydata() for line in axes.get_lines()}


def test_all_pictures_are_written(tmp_path):
    write_run(tmp_path)
    recipe = micro_recipe(max_steps=40, phases=PHASES)
    paths = plots.write_plots(tmp_path, recipe)
    assert [path.name for path in paths] == ["losses.png", "rates.png", "evaluation.png", "overview.png"]
    for path in paths:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"))
        assert min(pixels.shape) > 300 and pixels.std() > 5.0  # something is drawn
    assert plots.write_plots(tmp_path) == paths  # again, without a recipe: over the old ones


def test_curves_are_those_of_the_files(tmp_path):
    write_run(tmp_path)
    curves = plots.Curves.read(tmp_path / "log.csv")
    phases = plots._phases(curves, micro_recipe(max_steps=40, phases=PHASES))
    assert [(round(step), text) for step, text in phases] == [(1, "B 4"), (20, "B 8-32")]
    seen = drawn([*plots._loss_panels(curves, phases), *plots._rate_panels(curves)])
    assert list(seen) == ["total loss", "autoregressive loss", "divergence from the teacher", "learning rate", "speed"]
    plain = seen["autoregressive loss"]
    assert {"plan", "ask"} <= set(lines(plain)) and plain.get_yscale() == "log"
    raw = seen["learning rate"].get_lines()[0].get_xydata()
    assert np.allclose(raw, np.column_stack([np.arange(1, 41), 1e-3 / np.arange(1, 41)]))
    found = drawn(plots._evaluation_panels(plots.Curves.read(tmp_path / "evaluation.csv")))
    assert np.allclose(lines(found["plans: ADE"])["frames"], [[10, 3.0], [20, 1.5]])
    assert np.allclose(lines(found["driving score"])["drives"], [[10, 10.0], [20, 20.0]])


@pytest.mark.parametrize("loss", ["1.5", "0.0", "-2.0", "nan"])
def test_a_single_line_of_any_number_is_a_picture(tmp_path, loss):
    (tmp_path / "log.csv").write_text(f"step,progress,lr,loss,plan_ar,tokens_per_s\n5,0.1,0.001,{loss},{loss},0\n")
    assert plots.write_plots(tmp_path)[-1].name == "overview.png"


def test_nothing_to_show_and_broken_logs(tmp_path, capsys):
    assert plots.write_plots(tmp_path) == [] and plots.main([str(tmp_path)]) == 1 and plots.main([]) == 2
    (tmp_path / "log.csv").write_text("step,loss\n1,much\n")
    with pytest.raises(DataError, match="expected numbers"):
        plots.write_plots(tmp_path)
    assert plots.main([str(tmp_path)]) == 1 and "expected numbers" in capsys.readouterr().err
    write_run(tmp_path, 3, 0)
    assert plots.main([str(tmp_path)]) == 0 and "overview.png" in capsys.readouterr().out


def test_the_moving_average_keeps_the_mean_and_the_ends():
    assert plots.moving_average(np.array([3.0])).tolist() == [3.0]
    values = np.arange(1.0, 101.0)
    smooth = plots.moving_average(values, 0.1)
    assert np.allclose(smooth[5:95], values[5:95])  # a line stays a line
    assert smooth[0] == pytest.approx(np.mean(values[:6])) and smooth[-1] == pytest.approx(np.mean(values[-6:]))
