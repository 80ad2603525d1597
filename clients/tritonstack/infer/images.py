"""Image classification through a served model that describes its own preprocessing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.client.blocking import Client
from tritonstack.client.model import ModelMetadata
from tritonstack.errors import InputError, ServerError, UsageError
from tritonstack.infer.classification import Classification, ScoredClass, read_classification, scored_classes
from tritonstack.infer.picture_input import PictureInput, picture_input

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A message names at most this many pictures.
_NAMED = 5
# Encoded pictures of one request, in bytes: far below the 2 GiB of a gRPC message.
_MOST_BYTES = 256_000_000
# The codes of a server that understood the request and found the picture bad.
_REFUSALS = ("INVALID_ARGUMENT", "HTTP 400")


@dataclass(frozen=True)
class ClassifiedImage:
    """The best classes of one picture."""

    file: Path
    classes: tuple[ScoredClass, ...]


@dataclass(frozen=True)
class UnreadableImage:
    """A picture that could not be sent, and why."""

    file: Path
    error: InputError


@dataclass(frozen=True)
class ClassifiedImages:
    """The answers for several pictures, in their order, and the model version that gave them (empty: none was sent)."""

    model: str
    model_version: str
    images: tuple[ClassifiedImage | UnreadableImage, ...]

    def require_all(self) -> None:
        """Raise InputError naming each picture that could not be read, counted from 1."""
        bad = [(i, image) for i, image in enumerate(self.images, 1) if isinstance(image, UnreadableImage)]
        if len(self.images) == 1 and bad:
            raise bad[0][1].error
        if bad:
            raise InputError(
                f"{len(bad)} of {len(self.images)} pictures could not be read",
                given="; ".join(f"picture {i}: {image.error.summary}" for i, image in bad[:_NAMED])
                + (f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""),
            )


def classify_images(
    client: Client, model: str, files: Sequence[Path], *, version: str, top: int, timeout_s: float
) -> ClassifiedImages:
    """The `top` classes of each picture, asked for in batches as large as the model takes.

    The model's own config says whether pictures are preprocessed here or sent as they are. Only one batch of them is
    held at a time. A picture that cannot be read does not spoil the others: it is returned as an UnreadableImage.
    """
    metadata = client.metadata(model, version, timeout_s=timeout_s)
    config = client.config(model, version, timeout_s=timeout_s)
    pictures = picture_input(config, metadata)
    classification = read_classification(config)
    job = _Job(
        client,
        metadata,
        pictures,
        classification,
        _class_count(metadata, classification.output),
        top,
        timeout_s,
        version,
    )
    images: list[ClassifiedImage | UnreadableImage] = []
    for batch in _batches(files, max(1, metadata.max_batch_size)):
        images += job.classify(batch)
    return ClassifiedImages(model, job.answered, tuple(images))


@dataclass
class _Job:
    """The requests for the pictures of one call. `version` becomes that of the first answer: one for all pictures."""

    client: Client
    metadata: ModelMetadata
    pictures: PictureInput
    classification: Classification
    class_count: int
    top: int
    timeout_s: float
    version: str
    answered: str = ""

    def classify(self, files: Sequence[Path]) -> list[ClassifiedImage | UnreadableImage]:
        read = [self._read(file) for file in files]
        samples = [
            (file, sample) for file, sample in zip(files, read, strict=True) if not isinstance(sample, InputError)
        ]
        found = iter(self._ask(samples))
        return [
            UnreadableImage(file, sample) if isinstance(sample, InputError) else next(found)
            for file, sample in zip(files, read, strict=True)
        ]

    def _read(self, file: Path) -> NDArray[Any] | InputError:
        try:
            return self.pictures.read(file)
        except UsageError:
            raise
        except InputError as error:
            return error

    def _ask(self, samples: Sequence[tuple[Path, NDArray[Any]]]) -> Iterator[ClassifiedImage | UnreadableImage]:
        """One answer per sample, from as few requests as the server lets through."""
        for part in _parts(samples):
            try:
                yield from self._request(part)
            except ServerError as error:
                if not self.pictures.server_decodes or error.code not in _REFUSALS:
                    raise
                if len(part) == 1:
                    file, _ = part[0]
                    refused = InputError(f"image file {str(file)!r} was refused by the server: {error.summary}")
                    yield UnreadableImage(file, refused)
                    continue
                # One bad picture fails its whole request: alone, each is judged by itself.
                for sample in part:
                    yield from self._ask([sample])

    def _request(self, samples: Sequence[tuple[Path, NDArray[Any]]]) -> list[ClassifiedImage | UnreadableImage]:
        import numpy as np

        arrays = [sample for _, sample in samples]
        if len({array.shape for array in arrays}) > 1:
            raise InputError(
                "the pictures differ in size after preprocessing, so they cannot share a batch",
                expected="a preprocessing that ends in one size (resize or center_crop)",
                next_step="send them one by one",
            )
        # A model without batching may still have a leading dimension of its own, of one sample.
        shape = self.metadata.input(self.pictures.name).shape
        one_sample = self.metadata.max_batch_size == 0 and len(shape) == arrays[0].ndim
        result = self.client.infer(
            self.metadata.name,
            {self.pictures.name: arrays[0] if one_sample else np.stack(arrays)},
            outputs={self.classification.output: self.class_count},
            version=self.version,
            timeout_s=self.timeout_s,
        )
        self.version = self.answered = result.model_version
        rows = result[self.classification.output].reshape(len(samples), -1).tolist()
        return [
            ClassifiedImage(file, tuple(scored_classes(row, self.classification.activation)[: self.top]))
            for (file, _), row in zip(samples, rows, strict=True)
        ]


def _parts(
    samples: Sequence[tuple[Path, NDArray[Any]]],
) -> Iterator[Sequence[tuple[Path, NDArray[Any]]]]:
    """Runs of samples whose encoded bytes fit one message; arrays of numbers, small and of one size, in one run."""
    part: list[tuple[Path, NDArray[Any]]] = []
    size = 0
    for sample in samples:
        own = sum(map(len, sample[1])) if sample[1].dtype == object else 0
        if part and size + own > _MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(sample)
        size += own
    if part:
        yield part


def _class_count(metadata: ModelMetadata, output: str) -> int:
    """How many classes the output has: its size per sample; a large number where the model leaves it open."""
    try:
        shape = metadata.output(output).shape
    except KeyError as error:
        raise InputError(f"bad classification parameter: {error.args[0]}") from None
    dims = shape[1:] if metadata.max_batch_size > 0 or len(shape) > 1 else shape
    count = 1
    for dim in dims:
        if dim < 0:
            return 2**31 - 1
        count *= dim
    return count


def _batches(files: Sequence[Path], size: int) -> Iterator[Sequence[Path]]:
    for start in range(0, len(files), size):
        yield files[start : start + size]
