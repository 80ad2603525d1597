"""Embed sentences with the served model and print how alike they are.

python examples/sentence_embedding/client.py --url grpc://127.0.0.1:8001
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from model import model_folder
from tokenizers import Tokenizer

from tritonstack import Client, TritonstackError
from tritonstack.terminal import table

SENTENCES = [
    "A man is eating a plate of pasta.",
    "Somebody has noodles for dinner.",
    "The stock market fell sharply on Monday.",
    "Shares lost a lot of value at the start of the week.",
]


def tokenize(tokenizer: Tokenizer, sentences: list[str]) -> dict[str, np.ndarray]:
    """int64 `input_ids` and `attention_mask` [sentence, token], padded to the longest sentence."""
    tokenizer.enable_padding()
    tokenizer.enable_truncation(max_length=256)
    encoded = tokenizer.encode_batch(sentences)
    return {
        "input_ids": np.array([e.ids for e in encoded], dtype=np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], dtype=np.int64),
    }


def main() -> int:
    """Print the cosine similarity of each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="grpc://127.0.0.1:8001")
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    try:
        with Client(options.url) as client:
            result = client.infer("sentence_embedding", tokenize(tokenizer, options.sentences))
    except TritonstackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    vectors = result["embedding"]
    rows = [
        (f"{i + 1}. {text}", *(f"{value:.2f}" for value in vectors[i] @ vectors.T))
        for i, text in enumerate(options.sentences)
    ]
    print(table(["cosine similarity", *(f"{i + 1}." for i in range(len(rows)))], rows, align="<" + ">" * len(rows)))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
