"""Driver: a scene in, typed answers out. The whole flow stands in `answer`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.pick import check_word, choose, make_decoder, needs_an_engine
from wamdiff2_core.decode.result import DecodeResult
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.decode.task_scaffold import task_scaffold
from wamdiff2_core.errors import CheckpointError, ConfigError
from wamdiff2_core.expected import Expected
from wamdiff2_core.kernel_choice import Foreseen, answer_tokens, engine_sizes, foresee
from wamdiff2_core.model.checkpoint import LoadedModel, load_model, prompts_of
from wamdiff2_core.model.images import ImageFormat, preprocess
from wamdiff2_core.model.prompt import Prompt, chat_prompt, human_text
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.parallel import mapped
from wamdiff2_core.readiness import call_shapes
from wamdiff2_core.scene import Answer, Cost, Detections, Failure, FailureKind, Plan, Scene
from wamdiff2_core.tasks import TASKS, ask, detect, plan
from wamdiff2_core.tasks.checks import scene_problem
from wamdiff2_core.tasks.reading import Result, read_answer

FRONT = "cam_front"
PICTURES = 1  # thread that resizes them, beside the one that asks
UPSTREAM_FORMATS = {"plan": "upstream", "detect": "qwen3vl_json", "ask": "text"}
_MODULES: dict[str, ModuleType] = {"plan": plan, "detect": detect, "ask": ask}

log = logging.getLogger(__name__)


class Driver:
    """Owns the weights, the tokenizer and the decoder of one checkpoint.

    `decoding` may be replaced between calls; its `max_new_tokens` is not used: the checkpoint says how long
    answers are. `choice`: which decoder runs, and why.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        tokenizer: TextTokenizer,
        image_format: ImageFormat,
        decoding: DecodingConfig | None = None,
        limits: plan.PlanLimits | None = None,
        kernels: str = "auto",
        block_sizes: Sequence[int] = (),
    ) -> None:
        """kernels: one of `pick.WORDS`. "auto": the engine with Triton's kernels where they can run, else "lean".

        block_sizes: that an engine must know besides 1, 4, 8, 16, 32, the checkpoint's and that of `decoding`.
        Raises CheckpointError when tokenizer, formats and model do not fit together, ConfigError for an unknown word
        and for an engine that cannot run the model.
        """
        check_word(kernels)
        self.loaded, self.tokenizer, self.image_format = loaded, tokenizer, image_format
        self._pool = ThreadPoolExecutor(PICTURES, thread_name_prefix="pictures")
        self.limits = limits or plan.PlanLimits()
        self.decoding = decoding or DecodingConfig(block_size=32 if loaded.mask_token_id is not None else 1)
        entry = loaded.block_diffusion
        self.ours = prompts_of(loaded.kind, entry, loaded.folder) == "wamdiff2-1"
        self.formats: dict[str, str] = {**UPSTREAM_FORMATS, **entry.get("answer_formats", {})}
        self.max_new_tokens = answer_tokens(entry)
        self.image_sizes = {name: (int(w), int(h)) for name, (w, h) in entry.get("image_sizes", {}).items()}
        self.cameras: tuple[str, ...] = tuple(entry.get("cameras", (FRONT,)))
        self.optional_cameras: tuple[str, ...] = tuple(entry.get("optional_cameras", ()))  # scenes may lack them
        self._check_fit()
        self._scaffolds = {task: self._scaffold(task) for task in TASKS}
        known = (*block_sizes, self.decoding.block_size)
        sizes = engine_sizes(loaded, tokenizer, image_format, known, loaded.folder)
        self.choice = choose(kernels, loaded, sizes)
        self._foreseen = Foreseen(self.choice, sizes)
        self.decoder = make_decoder(self.choice, loaded, sizes)
        log.info("kernels %s: %s", self.kernels, self.kernels_reason)

    @classmethod
    def from_checkpoint(
        cls,
        folder: Path | str,
        device: str = "cpu",
        dtype: str = "float32",
        decoding: DecodingConfig | None = None,
        kernels: str = "auto",
        block_sizes: Sequence[int] = (),
    ) -> Driver:
        """Loads any of the three kinds of checkpoint folder. kernels, block_sizes: see Driver."""
        check_word(kernels)
        if needs_an_engine(kernels):
            foresee(folder, device, dtype, kernels, block_sizes)  # refused before the weights are read
        loaded = load_model(folder, device=device, dtype=dtype)
        tokenizer, image_format = TextTokenizer.from_folder(folder), ImageFormat.from_folder(folder)
        return cls(loaded, tokenizer, image_format, decoding, kernels=kernels, block_sizes=block_sizes)

    @property
    def kernels(self) -> str:
        """What runs: "lean", "plain", or "engine" and the name of its kernel set."""
        return self.decoder.kernels

    @property
    def kernels_reason(self) -> str:
        """Why these: asked for, or what "auto" found."""
        return self.choice.reason

    @property
    def block_sizes(self) -> tuple[int, ...] | None:
        """Block sizes that an engine was made for; None: any may be asked for."""
        return self.decoder.engine.config.block_sizes if isinstance(self.decoder, EngineDecoder) else None

    def get_ready(self, expected: Expected | None = None) -> float:
        """Let an engine capture all passes that `expected` needs, so that no later answer waits for one: seconds.

        Other decoders are always ready. Calls of another kind still work, and get ready when they first come.
        """
        began = time.perf_counter()
        if isinstance(self.decoder, EngineDecoder):
            engine = self.decoder.engine
            engine.warm_up(call_shapes(self, expected or Expected(), engine.config))
            if engine.device.type == "cuda":
                torch.cuda.synchronize(engine.device)
        return time.perf_counter() - began

    def plan(self, scene: Scene) -> Plan | Failure:
        """Where to drive in the next 4 s."""
        return self.answer(scene, ("plan",))["plan"]  # type: ignore[return-value]

    def plan_candidates(
        self, scene: Scene, count: int, temperature: float = 1.0, seed: int | None = None
    ) -> list[Plan | Failure]:
        """`count` plans drawn for one scene at this temperature, in one batch behind one pass over the prompt.

        The first plans of a larger `count` are those of a smaller one with the same seed. seed None: others each time.
        Raises ConfigError for settings that cannot be, and for more than an engine is made for (64).
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"count: expected an integer >= 1, got {count!r}")
        self._foreseen.check_candidates(count)
        decoding = replace(self.decoding, temperature=temperature, seed=seed)
        problem = scene_problem(scene, "plan", self.required(scene))
        if problem:
            return [Failure(FailureKind.INPUT, problem)] * count
        pixels, grid = self.pixels(scene)
        prompt = self.prompt(scene, "plan", grid)
        problem = self.too_long("plan", len(prompt.ids))
        if problem:
            return [Failure(FailureKind.INPUT, problem)] * count
        # All but the last token, which a model of the next token needs in each row, is shared.
        outputs = self._share(["plan"] * count, [prompt] * count, len(prompt.ids) - 1, pixels, grid, decoding)
        return [self._read(scene, "plan", *output) for output in outputs]  # type: ignore[misc]

    def detect(self, scene: Scene) -> Detections | Failure:
        """What is in front of us."""
        return self.answer(scene, ("detect",))["detect"]  # type: ignore[return-value]

    def ask(self, scene: Scene) -> Answer | Failure:
        """The answer to the scene's question."""
        return self.answer(scene, ("ask",))["ask"]  # type: ignore[return-value]

    def answer(self, scene: Scene, tasks: Sequence[str] = TASKS) -> dict[str, Result]:
        """All `tasks` on one scene, in one batch on a shared image prefix. A task that fails says so in its place."""
        return dict(zip(tasks, self.answer_each([(task, scene) for task in tasks]), strict=True))

    def answer_each(self, requests: Sequence[tuple[str, Scene]]) -> list[Result]:
        """(task, scene) pairs of one moment in one batch: scenes of the same images, which may ask different things.

        ConfigError for an unknown task, and for more than an engine is made for (64).
        """
        self._foreseen.check_candidates(len(requests), "requests")
        results: dict[int, Result] = {}
        for index, (task, scene) in enumerate(requests):
            if task not in TASKS:
                raise ConfigError(f"task: expected one of {', '.join(TASKS)}; got {task!r}")
            problem = scene_problem(scene, task, self.required(scene))
            if problem:
                results[index] = Failure(FailureKind.INPUT, problem)
        valid = [index for index in range(len(requests)) if index not in results]
        if valid:
            pixels, grid = self.pixels(requests[valid[0]][1])
            counts = self._image_tokens(grid)
            prompts = {index: self._prompt(requests[index][1], requests[index][0], counts) for index in valid}
            for index in valid:  # one that is too long must not take the others of its batch along
                problem = self.too_long(requests[index][0], len(prompts[index].ids))
                if problem:
                    results[index] = Failure(FailureKind.INPUT, problem)
                    del prompts[index]
            outputs = self._decode([requests[index][0] for index in prompts], list(prompts.values()), pixels, grid)
            for index, output in zip(prompts, outputs, strict=True):
                task, scene = requests[index]
                results[index] = self._read(scene, task, *output)
        return [results[index] for index in range(len(requests))]

    def required(self, scene: Scene) -> tuple[str, ...]:
        """Ours: the checkpoint's cameras. Others see one image: the front camera, or the only one there is."""
        if not self.ours:
            return tuple(scene.images) if len(scene.images) == 1 else (FRONT,)
        further = () if "cameras" in self.loaded.block_diffusion else tuple(scene.images)
        absent = {name for name in self.optional_cameras if name not in scene.images}
        return tuple(name for name in self.image_sizes if name in (*self.cameras, *further) and name not in absent)

    def scaffold(self, task: str) -> Scaffold | None:
        """What may stand where in the task's answers; None: anything."""
        return self._scaffolds[task]

    def prompt(self, scene: Scene, task: str, grid: torch.Tensor) -> Prompt:
        """What the model is told for a task on a scene whose pictures have these patches (`pixels`)."""
        return self._prompt(scene, task, self._image_tokens(grid))

    def too_long(self, task: str, tokens: int, block_size: int | None = None) -> str | None:
        """Why an engine has no room for a prompt of so many tokens and the task's answer; None: there is room.

        block_size: if another than that of `decoding`. Other decoders have no such end.
        """
        if not isinstance(self.decoder, EngineDecoder):
            return None
        size = block_size or self.decoding.block_size
        return self.decoder.engine.config.too_long(tokens, self.max_new_tokens[task], size)

    def pixels(self, scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
        """The scene's pictures as patches, and how many each has: pixel_values, grid_thw (images, 3)."""
        names = self.required(scene)
        sizes = [self.image_sizes[name] for name in names] if self.ours else None
        images = [np.asarray(scene.images[name]) for name in names]
        return preprocess(images, sizes, self.image_format, partial(mapped, self._pool) if len(images) > 1 else map)

    def _image_tokens(self, grid: torch.Tensor) -> list[int]:
        return (grid.prod(dim=1) // self.image_format.merge_size**2).tolist()

    def _prompt(self, scene: Scene, task: str, image_tokens: Sequence[int]) -> Prompt:
        module = _MODULES[task]
        text = human_text(module.prompt(scene), len(image_tokens)) if self.ours else module.upstream_prompt(scene)
        return chat_prompt(self.tokenizer, text, image_tokens)

    def _decode(
        self, tasks: Sequence[str], prompts: Sequence[Prompt], pixels: torch.Tensor, grid: torch.Tensor
    ) -> list[tuple[DecodeResult, Cost]]:
        """An answer per prompt: batched behind the image prefix where all share it, one after the other otherwise."""
        ends = {prompt.ids[: prompt.images_end] for prompt in prompts}
        if len(prompts) > 1 and len(ends) == 1:
            return self._share(tasks, prompts, prompts[0].images_end, pixels, grid, self.decoding)
        outputs = [
            self.decoder.generate(
                torch.tensor(prompt.ids),
                pixels,
                grid,
                self.decoding,
                self._scaffolds[task],
                max_new_tokens=[self.max_new_tokens[task]],
            )
            for task, prompt in zip(tasks, prompts, strict=True)
        ]
        return [(output, _cost(output)) for output in outputs]  # type: ignore[arg-type]

    def _share(
        self,
        tasks: Sequence[str],
        prompts: Sequence[Prompt],
        shared: int,
        pixels: torch.Tensor,
        grid: torch.Tensor,
        decoding: DecodingConfig,
    ) -> list[tuple[DecodeResult, Cost]]:
        """An answer per prompt, in one batch behind their first `shared` tokens, which hold all images."""
        prefix = self.decoder.prefill(torch.tensor(prompts[0].ids[:shared]), pixels, grid, decoding.block_size)
        rests = [torch.tensor(prompt.ids[shared:]) for prompt in prompts]
        scaffolds = [self._scaffolds[task] for task in tasks]
        limits = [self.max_new_tokens[task] for task in tasks]
        outputs = self.decoder.generate(rests, None, None, decoding, scaffolds, prefix, limits)
        batch = [outputs] if isinstance(outputs, DecodeResult) else outputs
        return [(output, _cost(output, prefix.forwards, prefix.vision_ms, prefix.prefill_ms)) for output in batch]

    def _read(self, scene: Scene, task: str, output: DecodeResult, cost: Cost) -> Result:
        answer = self.tokenizer.answer(output.tokens, output.confidences)
        result = read_answer(task, self.formats[task], output.status.value, answer, scene, self.limits, cost)
        if isinstance(result, Plan):
            return replace(result, log_likelihood=_log_likelihood(output.confidences))
        return result

    def _scaffold(self, task: str) -> Scaffold | None:
        return task_scaffold(task, self.tokenizer, self.formats[task])

    def _check_fit(self) -> None:
        where = self.loaded.folder
        if self.tokenizer.eos_id not in self.loaded.eos_token_ids:
            raise CheckpointError(
                f"{where}: tokenizer ends with {self.tokenizer.eos_id}, the model with {self.loaded.eos_token_ids}"
            )
        if self.tokenizer.vocab_size > self.loaded.vocab_size:
            raise CheckpointError(
                f"{where}: {self.tokenizer.vocab_size} tokens do not fit a model with {self.loaded.vocab_size} rows"
            )
        for task in TASKS:
            if self.formats[task] not in _MODULES[task].FORMS:
                raise CheckpointError(
                    f"{where}: answer_formats.{task}: expected one of {_MODULES[task].FORMS}, got {self.formats[task]}"
                )
        if self.ours and not set(self.cameras) <= self.image_sizes.keys():
            raise CheckpointError(
                f"{where}: image_sizes: expected sizes for {', '.join(self.cameras)}; got {self.image_sizes}"
            )
        if not set(self.optional_cameras) <= set(self.cameras) - {FRONT}:
            raise CheckpointError(
                f"{where}: optional_cameras: expected some of {', '.join(self.cameras)}, never {FRONT}; "
                f"got {', '.join(self.optional_cameras)}"
            )


def _cost(output: DecodeResult, forwards: int = 0, vision_ms: float = 0.0, prefill_ms: float = 0.0) -> Cost:
    """What the answer took, the shared prefix included; milliseconds are those of the whole batch."""
    return Cost(
        forwards=output.forwards + forwards,
        steps_per_block=tuple(output.steps_per_block),
        tokens=len(output.tokens),
        vision_ms=output.vision_ms + vision_ms,
        prefill_ms=output.prefill_ms + prefill_ms,
        decode_ms=output.decode_ms,
    )


def _log_likelihood(confidences: Sequence[float]) -> float:
    """Of a whole answer: natural logarithm of the product of its tokens' probabilities."""
    return float(np.log(np.clip(np.asarray(confidences, dtype=np.float64), 1e-30, 1.0)).sum())
