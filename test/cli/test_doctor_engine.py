"""`wamdiff2 doctor`: the engine's kernels, and `--build`, on machines that are made up: all without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from wamdiff2_cli import engine_build, engine_checks
from wamdiff2_cli.main import app
from wamdiff2_core import Driver, kernel_choice
from wamdiff2_core.decode import pick
from wamdiff2_core.decode.engine import flashinfer_checks, flashinfer_ops, kernel_sets
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.flashinfer_checks import Finding, findings
from wamdiff2_core.decode.pick import TextModel
from wamdiff2_core.errors import CheckpointError

HOPPER = (9, 0)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 with the package triton, as far as questions go."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: HOPPER)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("json" if name == "triton" else name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(pick, "triton_sizes", lambda config, sizes: None)
    monkeypatch.setattr(kernel_sets, "triton_release", lambda: "3.6.0")


def flashinfer(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], capability=HOPPER) -> None:
    """FlashInfer is installed, and the environment is this one."""
    found = findings(capability, environ, flashinfer_checks.KNOWN_VERSION)
    monkeypatch.setattr(flashinfer_ops, "here", lambda: found)


def head_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The checkpoint's heads have this size."""
    text = SimpleNamespace(head_dim=size)
    monkeypatch.setattr(kernel_choice, "text_model", lambda folder: SimpleNamespace(config=text))


def built(micro: Path, *options: object) -> tuple[int, str, list[str]]:
    """(exit code, standard output, lines of errors) of `doctor --build`."""
    arguments = ["doctor", "--build", "--checkpoint", str(micro), *map(str, options)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr.strip().splitlines()


def test_without_a_gpu_the_engine_is_optional(no_gpu, micro: Path) -> None:
    found = list(engine_checks.engine_findings(micro))
    assert [one.name for one in found] == ["engine", "flashinfer"]
    assert all(one.state == "optional" and one.do for one in found)
    assert "kernels lean" in found[0].found and "auto" in found[0].found and "CUDA device" in found[0].found
    assert "not installed" in found[1].found and flashinfer_checks.KNOWN_VERSION in found[1].do


def test_doctor_prints_it_and_the_demo_still_runs(no_gpu, micro: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "--checkpoint", str(micro)])
    told = json.loads(result.stdout)
    engine = [one for one in told["findings"] if one["name"].startswith(("engine", "flashinfer"))]
    assert len(engine) == 2 and {one["state"] for one in engine} == {"optional"}


def test_with_a_gpu_it_takes_triton(gpu, micro: Path) -> None:
    (engine, *_) = engine_checks.engine_findings(micro)
    assert engine.state == "ok" and "kernels engine triton" in engine.found and "H200" in engine.found


def test_flashinfer_is_told_line_by_line(gpu, micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"CUDA_HOME": f":{tmp_path}", "PATH": str(tmp_path), "HOME": str(tmp_path)}
    flashinfer(monkeypatch, environ)
    found = {one.name: one for one in engine_checks.engine_findings(micro)}
    assert found["flashinfer package"].state == found["flashinfer gpu"].state == "ok"
    toolkit, nvcc = found["flashinfer cuda toolkit"], found["flashinfer nvcc"]
    assert toolkit.state == nvcc.state == "optional"
    assert "colon" in toolkit.found and "CUDA_HOME" in toolkit.do and nvcc.do
    assert "missing" not in {one.state for one in found.values()}


def test_what_stands_in_the_way_of_flashinfers_kernels_is_named(gpu, micro: Path, monkeypatch) -> None:
    """Nothing; a tool that is missing; heads that they are not made for."""

    def told(folder: Path | None) -> tuple[str, str]:
        (one,) = (one for one in engine_checks.engine_findings(folder) if one.name == "flashinfer")
        return one.state, one.found

    fine = [Finding("package", True, "0.6.8"), Finding("kernels", False, "not compiled: norm", "build them")]
    monkeypatch.setattr(flashinfer_ops, "here", lambda: fine)
    assert told(None) == ("ok", "kernels flashinfer run where they are asked for; auto never takes them")
    state, found = told(micro)
    assert state == "optional" and "kernels flashinfer: expected a head size of (64, 128, 256), got 32" in found
    monkeypatch.setattr(flashinfer_ops, "HEAD_DIMS", (32,))
    assert told(micro)[0] == "ok"
    monkeypatch.setattr(flashinfer_ops, "here", lambda: [*fine, Finding("ninja", False, "not on PATH", "install it")])
    assert told(micro) == told(None)
    assert told(None)[0] == "optional" and "kernels flashinfer: ninja: not on PATH; install it; " in told(None)[1]
    assert engine_checks.choice(None).word == "triton"  # auto does not look at it


def test_build_without_a_gpu_ends_with_one_line(no_gpu, micro: Path) -> None:
    code, said, errors = built(micro)
    assert code == 1 and "left out" in said
    assert len(errors) == 1 and "no GPU here" in errors[0] and "--arch 90" in errors[0]


def test_build_without_triton_ends_with_one_line(no_gpu, micro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    code, _, errors = built(micro, "--arch", 90)
    assert code == 1 and len(errors) == 1 and "triton is not installed" in errors[0]


@pytest.mark.parametrize(("home", "told"), [(":/opt/cuda", "has a colon"), ("", "cuda toolkit: no CUDA_HOME")])
def test_build_names_what_flashinfer_lacks(gpu, micro, tmp_path, monkeypatch, home: str, told: str) -> None:
    """A stray colon, no toolkit: a line with the cure and exit code 1, while Triton's kernels still get compiled."""
    monkeypatch.setattr(flashinfer_checks, "cuda_home", lambda environ: environ.get("CUDA_HOME") or None)
    flashinfer(monkeypatch, {"CUDA_HOME": home, "PATH": str(tmp_path), "HOME": str(tmp_path)})
    monkeypatch.setattr(engine_build, "_triton", lambda *_: iter([("one pass", 1.25)]))
    head_of(monkeypatch, flashinfer_ops.HEAD_DIMS[0])
    code, said, errors = built(micro)
    assert code == 1 and "triton: one pass: 1.2 s" in said and "triton: done after" in said
    assert len(errors) == 1 and errors[0].startswith("wamdiff2: flashinfer: ") and told in errors[0]
    assert errors[0].count("flashinfer") == 1 and "set " in errors[0]


def test_no_nvcc_is_named(gpu, micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer(monkeypatch, {"CUDA_HOME": str(tmp_path), "PATH": str(tmp_path), "HOME": str(tmp_path)})
    monkeypatch.setattr(engine_build, "_triton", lambda *_: iter(()))
    head_of(monkeypatch, 128)
    code, said, errors = built(micro)
    assert code == 1 and not said and len(errors) == 1 and "nvcc" in errors[0] and "install" in errors[0]


def test_build_succeeds_with_what_is_there(gpu, micro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_ops, "here", lambda: [Finding("package", True, "0.6.8")])
    monkeypatch.setattr(flashinfer_ops, "build", lambda sizes: iter([(f"attention {sizes}", 74.6)]))
    monkeypatch.setattr(engine_build, "_triton", lambda *_: iter([("one pass", 0.5)]))
    head_of(monkeypatch, 128)
    code, said, errors = built(micro)
    assert code == 0 and not errors and "attention (128,): 74.6 s" in said


def test_a_librarys_own_error_is_one_line_and_costs_the_other_nothing(gpu, micro: Path, monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("PassManager::run failed\nand a page of it")
        yield

    monkeypatch.setattr(flashinfer_ops, "here", lambda: [Finding("package", True, "0.6.8")])
    monkeypatch.setattr(flashinfer_ops, "build", lambda sizes: iter([("attention", 1.0)]))
    monkeypatch.setattr(engine_build, "_triton", broken)
    head_of(monkeypatch, 128)
    code, said, errors = built(micro)
    assert code == 1 and errors == ["wamdiff2: triton: RuntimeError: PassManager::run failed"]
    assert "flashinfer: attention: 1.0 s" in said


def test_all_lanes_are_compiled_for() -> None:
    config = EngineConfig(rows=(1, 3), block_sizes=(1, 32), max_length=40, buckets=(16, 32, 64))
    widths = (1, 2, 16, 17, 32, 33, 48, 64)  # steps of 1, 2, 32, 64; prompts of 16 and 32, alone and with a block
    assert engine_build.forms(config) == [(rows, width) for rows in (1, 3) for width in widths]
    parts = engine_build.parts(config, (16, 128))
    assert parts["up to 16 tokens"] == [(1, 1), (1, 2), (1, 16), (3, 1), (3, 2)]
    assert parts["more than 128 tokens"] == [(3, 48), (3, 64)]
    assert sorted(form for part in parts.values() for form in part) == engine_build.forms(config)


def test_what_is_compiled_is_what_a_driver_of_the_checkpoint_runs(gpu, micro, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of the checkpoint's driver, its rows for candidates and its lengths; not an engine of other sizes."""
    seen: list[Any] = []

    def look(folder: Path, model: TextModel, arch: int | None) -> Iterator[tuple[str, float]]:
        seen.append(model.sizes)
        return iter(())

    monkeypatch.setattr(engine_build, "_triton", look)
    assert built(micro)[0] == 0
    driver = Driver.from_checkpoint(micro, kernels="torch")
    assert isinstance(driver.decoder, EngineDecoder) and seen == [driver.decoder.engine.config]
    forms = engine_build.forms(seen[0])
    assert {rows for rows, _ in forms} == {1, 4, 16, 64} and (64, 64) in forms


def test_a_model_that_no_engine_runs_is_told_instead_of_compiled(micro, tmp_path, monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("json" if name == "triton" else name))
    folder = tmp_path / "biased"
    shutil.copytree(micro, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["attention_bias"] = True
    (folder / "config.json").write_text(json.dumps(config))
    code, _, errors = built(folder, "--arch", 90)
    assert code == 1 and len(errors) == 1 and "without biases" in errors[0]


def test_arch_goes_with_build_and_checkpoints_are_named(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["doctor", "--arch", "90"]).exit_code == 2
    told = CliRunner().invoke(app, ["doctor", "--build", "--json", "--checkpoint", str(tmp_path)])
    assert told.exit_code == 2 and told.stdout == ""
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        built(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_what_runs_beside_the_layers_is_built_too(micro: Path, tmp_path: Path) -> None:
    """In a process of its own, as the build does it: moves of every lane, a prompt's gate, heads of images."""
    code = (
        "from pathlib import Path; from wamdiff2_cli.engine_build import compile_beside; "
        f"from wamdiff2_core.kernel_choice import text_model; folder = Path({str(micro)!r}); "
        "print(compile_beside(folder, text_model(folder).sizes, 90)[0])"
    )
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 4  # take, step, gate, turn_heads


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_after_a_build_no_pass_of_the_engine_compiles_anything(micro: Path, tmp_path: Path) -> None:
    """One part, and then its passes again in the same process, with what draws candidates: no kernel is new."""
    code = (
        "from wamdiff2_cli import engine_build as b; from wamdiff2_core.kernel_choice import text_model; "
        "from wamdiff2_core.decode.engine.kernel_sets import triton_sizes; import torch; "
        "from wamdiff2_core.decode.engine import triton_ahead as ahead; "
        f"m = text_model({str(micro)!r}); sizes = triton_sizes(m.config, m.sizes); "
        "part = b.parts(m.sizes, (16,))['up to 16 tokens']; "
        "first = b.compile_passes(16, sizes, part, False, 90)[0]; "
        "device = ahead.AbsentDevice(90).install(); "
        "ops = ahead.TritonOps(16, sizes, device='meta', pdl=True); "
        "e = lambda *n: torch.empty(*n, dtype=torch.bfloat16, device='meta'); "
        "ops.norm_linear(e(16, sizes.hidden), e(sizes.vocab, sizes.hidden), 1e-6); "
        "print(first, len(device.built))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled, missed = map(int, done.stdout.split())
    assert compiled > 5 and missed == 0
