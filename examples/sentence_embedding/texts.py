"""Texts to calibrate and to evaluate the sentence embedding with, from the test data of the PyPI package gensim.

Calibration: the beginnings of news articles, sentences of film reviews, and single words. Evaluation:
the word pairs of WordSimilarity-353 (L. Finkelstein et al., 2002) and the 50 news articles of M. D. Lee et al. (2005),
both with similarities that people gave. No text is in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from model import model_folder

LENGTHS = (256, 128, 64, 32, 16, 8, 4, 3)
"""Tokens of the calibration texts, the two that frame every text among them."""

Inputs = dict[str, np.ndarray[Any, Any]]


def text_folder() -> Path:
    """Where gensim keeps its test data; the package itself is not imported."""
    spec = find_spec("gensim")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("pip install --no-deps gensim==4.4.0")
    return Path(spec.submodule_search_locations[0]) / "test" / "test_data"


def calibration(count: int = 128) -> Iterator[Inputs]:
    """`count` texts: two thirds from the articles, the rest sentences and words.

    Each is cut to one of LENGTHS tokens, since only samples of one shape can run as a batch.
    """
    articles = _lines("lee_background.cor")
    sentences = [line.partition(" ")[2] for line in _lines("pang_lee_polarity.cor")]
    judged = {word for first, second, _ in _word_pairs() for word in (first, second)}
    for index in range(count):
        article = articles[index * len(articles) // count]
        if index % 6 == 4:
            yield _cut(sentences[index % len(sentences)])
        elif index % 6 == 5:
            words = sorted({word.strip(".,'\"()-").lower() for word in article.split()} - judged)
            yield _cut(max(words, key=len))
        else:
            yield _cut(article, most=LENGTHS[index // 6 % 6])


def evaluation() -> Iterator[tuple[Inputs, tuple[str, Any]]]:
    """(inputs, label): each word once with ("word", text), each article with ("article", number)."""
    for word in sorted({word for first, second, _ in _word_pairs() for word in (first, second)}):
        yield _tokens(word), ("word", word)
    for number, article in enumerate(_lines("lee.cor")):
        yield _tokens(article), ("article", number)


def agreement_with_people(outputs: dict[str, Any], labels: list[tuple[str, Any]]) -> float:
    """Mean of two correlations with people's judgement: Spearman's for word pairs, Pearson's for article pairs."""
    vectors = outputs["embedding"]
    place = {label: index for index, label in enumerate(labels)}
    pairs = _word_pairs()
    found = [float(vectors[place["word", a]] @ vectors[place["word", b]]) for a, b, _ in pairs]
    words = _correlation(_ranks(np.array(found)), _ranks(np.array([judged for *_, judged in pairs])))
    judged = np.loadtxt(text_folder() / "similarities0-1.txt")
    articles = vectors[[place["article", number] for number in range(len(judged))]]
    upper = np.triu_indices(len(judged), 1)
    return (words + _correlation((articles @ articles.T)[upper], judged[upper])) / 2


def _correlation(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def _word_pairs() -> list[tuple[str, str, float]]:
    rows = [line.split("\t") for line in _lines("wordsim353.tsv") if not line.startswith("#")]
    return [(first, second, float(judged)) for first, second, judged in rows]


def _lines(name: str) -> list[str]:
    return [line for line in (text_folder() / name).read_text("latin-1").splitlines() if line.strip()]


def _cut(text: str, most: int = 256) -> Inputs:
    """The tokens of a text, as many as the largest of LENGTHS that it fills."""
    count = min(most, _tokens(text)["input_ids"].shape[1])
    return _tokens(text, most=next(length for length in LENGTHS if length <= count))


def _tokens(text: str, most: int = 256) -> Inputs:
    """int64 `input_ids` and `attention_mask` [1, token] of one text, cut at `most` tokens."""
    encoded = _tokenizer(most).encode(text)
    return {
        "input_ids": np.array([encoded.ids], dtype=np.int64),
        "attention_mask": np.array([encoded.attention_mask], dtype=np.int64),
    }


@cache
def _tokenizer(most: int) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=most)
    return tokenizer
