"""Small made-up files of LingoQA and DriveBench, a random judge of Lingo-Judge's architecture, a local endpoint."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

LINGO = [
    ("q1", "s1", "is there a pedestrian?", ["Yes, one.", "yes there is one pedestrian"]),
    ("q2", "s1", "what do you do?", ["i turn left", "we turn left"]),
    ("q3", "s2", "is it raining?", ["no", "no, it is dry"]),
]
PROMPT_NAMES = ("PERCEPTION_MCQ", "PERCEPTION_VQA", "PREDICTION_VQA", "PLANNING_VQA", "BEHAVIOR_MCQ")


def picture(path: Path, colour: tuple[int, int, int] = (90, 120, 40)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((64, 64, 3), colour, np.uint8)).save(path)
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A table of these rows."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def lingo_rows() -> list[dict[str, Any]]:
    """A row for each reference, as LingoQA has them."""
    return [
        {"question_id": q, "segment_id": s, "images": [f"images/{s}/{k}.jpg" for k in range(2)], "question": text,
         "answer": answer}
        for q, s, text, answers in LINGO for answer in answers
    ]  # fmt: skip


def lingo_folder(folder: Path) -> Path:
    """val.parquet with its pictures."""
    for segment in ("s1", "s2"):
        for number in range(2):
            picture(folder / "images" / segment / f"{number}.jpg")
    return parquet(folder / "val.parquet", lingo_rows()).parent


def drivebench_entry(kind: str, tag: int, question: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"scene_token": "scene", "frame_token": "frame", "question_type": kind, "question": question,
            "answer": answer, "tag": [tag], **more}  # fmt: skip


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_judge(folder: Path, bias: float = 0.0) -> Path:
    """Random weights of the same architecture; `bias` is added to every logit."""
    import torch
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification, DebertaV2Tokenizer

    signs = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789?.,:QASC"
    vocabulary = [(sign, 0.0) for sign in signs] + [("▁", -2.0)] + [(letter, -3.0) for letter in letters]
    DebertaV2Tokenizer(vocab=vocabulary).save_pretrained(folder)
    config = DebertaV2Config(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=160, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16,
        norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False, type_vocab_size=0, num_labels=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = DebertaV2ForSequenceClassification(config)
    with torch.no_grad():
        model.classifier.weight *= 50.0  # random logits of both signs
        model.classifier.bias += bias
    model.save_pretrained(folder)
    return folder


def write_prompts(folder: Path) -> Path:
    """Files of the form of DriveBench's evaluate/prompts.py and request.py; running either would end the test."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "Q {{QUESTION}} looks {{DESC}} truth {{GT}} said {{PRED}} for {name}"
    lines = [f'{name}_PROMPT = """{text.format(name=name)}"""' for name in PROMPT_NAMES]
    prompts = folder / "prompts.py"
    prompts.write_text("\n".join([*lines, "raise SystemExit(1)"]))
    (folder / "request.py").write_text(
        "class A:\n    def f(self):\n        system_message = 'open'\nraise SystemExit(1)"
    )
    return prompts


@contextlib.contextmanager
def endpoint(answer: Callable[[int, str], tuple[int, str]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A chat endpoint on this machine: its address, and the requests so far. `answer`: (number of the request, its
    text) -> (status, what the model says, or the body itself where it starts with `raw:`).
    """
    asked: list[dict[str, Any]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                asked.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
                number = len(asked)
            status, said = answer(number, body["messages"][-1]["content"])
            choice = {"choices": [{"message": {"role": "assistant", "content": said}}]}
            sent = said.removeprefix("raw:").encode() if said.startswith("raw:") else json.dumps(choice).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_judge(tmp_path_factory.mktemp("judge"))
