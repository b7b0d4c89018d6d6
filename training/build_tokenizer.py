"""`python -m training.build_tokenizer [--corpus samples.json|DIR] --out DIR`: the small checkpoint's tokenizer."""

from __future__ import annotations

import argparse
from pathlib import Path

from wamdiff2_core.model.build_tokenizer import TEXT_TOKENS, build, corpus, read_samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--corpus", type=Path, help="samples.json or a folder of shards; without it the built-in texts alone"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text-tokens", type=int, default=TEXT_TOKENS)
    arguments = parser.parse_args()
    texts = list(read_samples(arguments.corpus)) if arguments.corpus else corpus()
    built = build(texts, arguments.out, arguments.text_tokens)
    print(
        f"{arguments.out}: {built.vocab_size} tokens from {len(texts)} texts; fixed answers take the tokens they should"
    )


if __name__ == "__main__":
    main()
