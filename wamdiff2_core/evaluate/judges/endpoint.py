"""A judge behind an OpenAI-compatible endpoint (chat completions): asked over HTTP, every verdict kept in a file.

A reply without a score, and an endpoint that keeps failing, leave a sample unjudged and counted; no number stands in.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.text_answers import read_rows

# Signs of emphasis may stand before the number; a minus may not, nor another scale than 100 behind it.
_SCORE = re.compile(r"Total Score:[\s*_\"'\[(]*(\d{1,3})(?!\d|[.,]\d)(?!\W{0,3}(?:/|out of)\s*(?!100(?!\d))\d)")
LARGEST_REPLY = 4_000_000  # bytes
FAILED_IN_A_ROW = 3  # prompts that got no answer at all before the others are not asked any more
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Endpoint:
    """Where and whom to ask. base_url: up to and without `/chat/completions`; key_env: the environment variable with
    the key, which is never written anywhere; empty: none is sent.
    """

    base_url: str
    model: str
    key_env: str = ""
    timeout_s: float = 60.0
    tries: int = 4
    pause_s: float = 2.0
    parallel: int = 4
    max_tokens: int = 3000

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.username or parts.query:
            raise ConfigError(f"judge: base_url: expected http(s)://HOST/..., got {self.base_url!r}")
        if not self.model or min(self.timeout_s, self.tries, self.parallel, self.max_tokens) <= 0 or self.pause_s < 0:
            raise ConfigError(
                f"judge: expected a model, and positive timeout_s, tries, parallel, max_tokens; got {self}"
            )
        if "lingojudge" in re.sub(r"[\W_]", "", self.model.lower()):
            raise ConfigError(
                f"judge: {self.model!r}: Lingo-Judge is a classifier in a folder; name an endpoint's model"
            )
        if self.key_env and not os.environ.get(self.key_env):
            raise ConfigError(f"judge: the environment variable {self.key_env} is empty: it should hold the key")

    @property
    def host(self) -> str:
        """Who runs the model: its name alone does not tell it from another that is served under the same name."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def who(self) -> str:
        """For the names of figures."""
        return f"{self.model} at {self.host}"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Endpoint:
        """From an entry of a configuration. ConfigError for names that it does not know, or values that are wrong."""
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(
                f"judge: expected base_url, model and perhaps key_env, timeout_s, ...: {error}"
            ) from error


@dataclass(frozen=True)
class Judged:
    """score: 0 to 100; None: not judged, and `problem` says why."""

    score: int | None
    reply: str = ""
    problem: str = ""


class EndpointJudge:
    """Asks for every prompt once; verdicts in `log` (one line each) are not asked for again."""

    def __init__(self, endpoint: Endpoint, log: Path) -> None:
        self.endpoint, self.log = endpoint, log
        self._lock = threading.Lock()
        self._failed = 0  # prompts in a row that got no answer

    def judge(self, prompts: Sequence[str]) -> list[Judged]:
        """A verdict per prompt, in their order."""
        known = {row["key"]: Judged(row["score"], row["reply"]) for row in read_rows(self.log) if _is_verdict(row)}
        self._failed = 0
        todo = dict.fromkeys(prompt for prompt in prompts if self._key(prompt) not in known)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.endpoint.parallel) as pool:
            made = dict(zip(todo, pool.map(self._one, todo)))
        return [known.get(self._key(prompt)) or made[prompt] for prompt in prompts]

    def _key(self, prompt: str) -> str:
        return hashlib.sha256(json.dumps([self.endpoint.base_url, self.endpoint.model, prompt]).encode()).hexdigest()[
            :24
        ]

    def _one(self, prompt: str) -> Judged:
        problem, again = "", False
        for attempt in range(self.endpoint.tries):
            if self._failed >= FAILED_IN_A_ROW:
                return Judged(None, problem=f"not asked: {FAILED_IN_A_ROW} prompts in a row got no answer")
            if attempt:
                time.sleep(self.endpoint.pause_s * 2 ** (attempt - 1))
            reply, problem, again = self._ask(prompt)
            if reply is not None:
                self._failed = 0
                return self._read(prompt, reply)
            if not again:
                break
        with self._lock:
            self._failed += again
        return Judged(None, problem=problem)

    def _read(self, prompt: str, reply: str) -> Judged:
        score = score_of(reply)
        if score is None:
            return Judged(None, reply, f"the reply holds no 'Total Score: 0 to 100': {reply[-80:]!r}")
        row = {"key": self._key(prompt), "model": self.endpoint.model, "score": score, "reply": reply}
        with self._lock, self.log.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(row) + "\n")
        return Judged(score, reply)

    def _ask(self, prompt: str) -> tuple[str | None, str, bool]:
        """(reply, or why there is none, whether another try may help)."""
        place = self.endpoint
        said = [{"role": "user", "content": prompt}]
        body = {"model": place.model, "temperature": 0.0, "max_tokens": place.max_tokens, "messages": said}
        headers = {"Content-Type": "application/json"}
        if place.key_env:
            headers["Authorization"] = f"Bearer {os.environ[place.key_env]}"
        url = place.base_url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=place.timeout_s) as response:
                content = json.loads(_whole(response, place.timeout_s))["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            return None, f"the endpoint answered {error.code} {error.reason}", error.code in RETRIED
        except (OSError, http.client.HTTPException) as error:
            return None, f"the endpoint cannot be reached: {error}", True
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            return None, f"the endpoint's answer is no chat completion: {type(error).__name__}: {error}", False
        if not isinstance(content, str):
            return None, f"the endpoint's answer holds no text but {type(content).__name__}", False
        return content, "", False


def score_of(reply: str) -> int | None:
    """The number after `Total Score:` (bold or not); None if there is none from 0 to 100."""
    found = _SCORE.search(reply)
    return int(found[1]) if found and int(found[1]) <= 100 else None


def _whole(response: http.client.HTTPResponse, timeout_s: float) -> bytes:
    """The body. A socket's timeout begins anew with every byte: OSError where the whole takes longer, ValueError where
    it is larger than any verdict.
    """
    end, parts, size = time.monotonic() + timeout_s, [], 0
    while part := response.read1(65536):
        parts.append(part)
        size += len(part)
        if size > LARGEST_REPLY:
            raise ValueError(f"more than {LARGEST_REPLY} bytes")
        if time.monotonic() > end:
            raise TimeoutError(f"no whole answer within {timeout_s:g} s")
    return b"".join(parts)


def _is_verdict(row: Mapping[str, Any]) -> bool:
    score = row.get("score")
    return isinstance(row.get("key"), str) and isinstance(row.get("reply"), str) and score in range(101)
