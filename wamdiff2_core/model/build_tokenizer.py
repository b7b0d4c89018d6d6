"""Train a small tokenizer in Qwen's format (byte-level BPE, single digits) on our own texts, and check it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from wamdiff2_core.errors import CheckpointError, DataError
from wamdiff2_core.model.tokenizer import END, SPECIAL_TOKENS, TextTokenizer
from wamdiff2_core.scene import PLAN_POINTS, Box, Command, EgoState
from wamdiff2_core.tasks import ask, detect, plan
from wamdiff2_core.tasks.navigation import navigation_text

TEXT_TOKENS = 1000
# Qwen2's rule of cutting text: contractions, words with one leading character, single digits, punctuation, white space.
QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_RECORD_BORDER = re.compile(r"(?<=;)(?=[a-z])")

_THINGS = (
    "the car",
    "the truck",
    "the pedestrian",
    "the cyclist",
    "the light",
    "the traffic light",
    "the road",
    "the junction",
    "the crosswalk",
    "the lane",
    "the stop line",
    "a bus",
    "the van",
    "a bicycle",
    "a person",
    "the sidewalk",
    "a building",
    "the vehicle",
    "an obstacle",
    "the sky",
    "the weather",
    "the sign",
    "a motorcycle",
)
_QUESTIONS = (
    "what is ahead?",
    "what colour is {thing}?",
    "what color is {thing}?",
    "where is {thing}?",
    "how far is {thing}?",
    "is there {thing} ahead?",
    "why are we braking?",
    "why do we stop?",
    "may i turn {side}?",
    "can we go {side}?",
    "how many cars are there?",
    "which is nearest: {thing} or {other}?",
    "is {thing} moving?",
    "is it day or night?",
    "is the road wet?",
    "what should we do next?",
    "do you see {thing}?",
    "is it safe to change lanes?",
    "is it raining?",
    "what is {thing} doing?",
    "are there any pedestrians?",
    "what is the nearest car?",
    "how fast are we going?",
)
_ANSWERS = (
    "yes, {thing} is {place}.",
    "no, {thing} is {place}.",
    "{thing} is {metres} m {place}.",
    "we stop for {thing}.",
    "the light is {colour}.",
    "red",
    "green",
    "yellow",
    "none",
    "yes",
    "no",
    "because {thing} is {place}.",
    "nothing is ahead",
    "{metres} m",
    "we wait for {thing} and {other}.",
    "the road is clear.",
    "we follow {thing}.",
    "{thing} is {colour}.",
    "no, the light is red.",
    "yes, the light is green.",
    "{thing} is stopped.",
    "{thing} is crossing.",
    "it is {sky}.",
)
_FILL = {
    "thing": _THINGS,
    "other": _THINGS[::-1],
    "side": ("left", "right", "straight", "back"),
    "place": (
        "ahead",
        "on the left",
        "on the right",
        "behind us",
        "in front of us",
        "in our lane",
        "nearby",
        "far away",
    ),
    "colour": ("red", "green", "yellow", "black", "white", "blue", "grey", "silver", "brown", "orange", "off"),
    "sky": ("day", "night", "raining", "foggy", "cloudy", "clear", "sunny", "dark"),
}


def corpus() -> list[str]:
    """Texts of all tasks made from their own prompt and answer functions: enough to build a tokenizer without data."""
    rng = np.random.default_rng(0)
    texts = [navigation_text(command, distance) for command in Command for distance in range(-5, 65, 5)] * 8
    for text in tuple(texts):
        velocity, acceleration = rng.uniform(-20, 20, 2), rng.uniform(-5, 5, 2)
        texts.append(plan.prompt_text(EgoState(tuple(velocity), tuple(acceleration)), text))
    for template in _QUESTIONS:
        texts += [ask.prompt_text(_filled(template, rng)) for _ in range(40)]
    for template in _ANSWERS:
        texts += [_filled(template, rng) for _ in range(40)]
    return texts


def read_samples(path: Path) -> Iterator[str]:
    """Every text of the samples.json files at or below `path`. Raises DataError for anything else."""
    files = [path] if path.is_file() else sorted(path.rglob("samples.json"))
    if not files:
        raise DataError(f"{path}: expected samples.json or a folder that holds some, found none")
    for file in files:
        try:
            for sample in json.loads(file.read_text(encoding="utf-8")):
                yield from (turn["value"].replace("<image>", "").strip() for turn in sample["conversations"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{file}: expected a list of samples with conversations, got {error!r}") from error


def build(texts: Iterable[str], folder: Path, text_tokens: int = TEXT_TOKENS) -> TextTokenizer:
    """Trains on `texts`, writes the tokenizer's files into `folder`. The same texts give the same files."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PIECES), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=text_tokens, min_frequency=2, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(_weighted(texts), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_CONFIG, indent=2) + "\n", encoding="utf-8")
    built = TextTokenizer.from_folder(folder)
    check(built)
    return built


def check(tokenizer: TextTokenizer) -> None:
    """Raises CheckpointError unless the fixed answers take exactly the tokens that their scaffolds say."""
    points = np.stack([np.linspace(1.11, 88.88, PLAN_POINTS), np.linspace(-45.6, 78.9, PLAN_POINTS)], axis=1)
    boxes = [Box(label, (100 + 7 * i, 234, 569 + 7 * i, 801)) for i, label in enumerate((*detect.LABELS, "car"))]
    _fits("plan", tokenizer, plan.serialise(points), plan.allowed(tokenizer))
    _fits("detect", tokenizer, detect.serialise(boxes), detect.allowed(tokenizer))
    hostile = "".join(tokenizer.special)
    if (
        set(tokenizer.encode(hostile)) & set(tokenizer.special.values())
        or tokenizer.decode(tokenizer.encode(hostile)) != hostile
    ):
        raise CheckpointError("tokenizer: control tokens typed as text must stay text")


def _fits(task: str, tokenizer: TextTokenizer, text: str, allowed: tuple[tuple[int, ...] | None, ...] | None) -> None:
    ids = [*tokenizer.encode(text), tokenizer.eos_id]
    assert allowed is not None  # both forms checked here have a scaffold
    if len(ids) != len(allowed) or any(
        choice is None or index not in choice for index, choice in zip(ids, allowed, strict=True)
    ):
        raise CheckpointError(
            f"tokenizer: {task} answer {text!r} takes {len(ids)} tokens, its scaffold has {len(allowed)}"
        )


def _weighted(texts: Iterable[str]) -> Iterator[str]:
    """The texts, and the labels and roles often enough to be whole tokens.

    Boxes follow each other without a space, but `;car` must stay two tokens: records are handed over one by one.
    """
    for text in itertools.chain(texts, corpus()):
        yield from _RECORD_BORDER.split(text)
    for word in (*detect.LABELS, "user", "assistant"):
        yield from itertools.repeat(word, 5000)


def _filled(template: str, rng: np.random.Generator) -> str:
    chosen = {name: str(rng.choice(values)) for name, values in _FILL.items()}
    return template.format(metres=int(rng.integers(1, 80)), **chosen)


_CONFIG = {
    "tokenizer_class": "Qwen2Tokenizer",
    "add_prefix_space": False,
    "bos_token": None,
    "eos_token": END,
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": False,
    "model_max_length": 4096,
}
