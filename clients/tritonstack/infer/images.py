"""Image classification through a served model that describes its own preprocessing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.client.blocking import Client
from tritonstack.client.model import ModelConfigView, ModelMetadata
from tritonstack.errors import InputError, UsageError
from tritonstack.image import ImagePreprocessing
from tritonstack.infer.classification import ScoredClass, read_classification, scored_classes
from tritonstack.tensor.conform import nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARAMETER = "tritonstack.image"
# A message names at most this many pictures.
_NAMED = 5


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


def read_preprocessing(config: ModelConfigView) -> ImagePreprocessing:
    """The model's own image preprocessing. InputError where it has none or one that makes no sense."""
    text = config.parameters.get(PARAMETER)
    if text is None:
        raise InputError(
            f"model {config.name!r} does not say how a picture becomes its input",
            expected=f"the parameter {PARAMETER!r} in its config.pbtxt, which `tritonstack export` writes",
            next_step="send tensors with --input instead of --image",
        )
    try:
        return ImagePreprocessing.from_json(text)
    except UsageError as error:
        # The server's configuration is at fault here and not a flag.
        raise InputError(
            f"the parameter {PARAMETER!r} of model {config.name!r} makes no sense: {error.summary}",
            given=error.given,
            expected=error.expected,
        ) from None


def classify_images(
    client: Client, model: str, files: Sequence[Path], *, version: str, top: int, timeout_s: float
) -> ClassifiedImages:
    """The `top` classes of each picture, asked for in batches as large as the model takes.

    Only one batch of decoded pictures is held at a time. A picture that cannot be read does not spoil the others: it
    is returned as an UnreadableImage.
    """
    import numpy as np

    metadata = client.metadata(model, version, timeout_s=timeout_s)
    config = client.config(model, version, timeout_s=timeout_s)
    preprocessing = read_preprocessing(config)
    classification = read_classification(config)
    name = _image_input(preprocessing, metadata)
    class_count = _class_count(metadata, classification.output)
    images: list[ClassifiedImage | UnreadableImage] = []
    answered = ""
    for batch in _batches(files, max(1, metadata.max_batch_size)):
        read = [_read(preprocessing, file) for file in batch]
        samples = [sample for sample in read if not isinstance(sample, UnreadableImage)]
        if not samples:
            images += [image for image in read if isinstance(image, UnreadableImage)]
            continue
        if len({sample.shape for sample in samples}) > 1:
            raise InputError(
                "the pictures differ in size after preprocessing, so they cannot share a batch",
                expected="a preprocessing that ends in one size (resize or center_crop)",
                next_step="send them one by one",
            )
        # A model without batching may still have a leading dimension of its own, of one sample.
        one_sample = metadata.max_batch_size == 0 and len(metadata.input(name).shape) == samples[0].ndim
        result = client.infer(
            model,
            {name: samples[0] if one_sample else np.stack(samples)},
            outputs={classification.output: class_count},
            version=version or answered,
            timeout_s=timeout_s,
        )
        answered = result.model_version
        rows = iter(result[classification.output].reshape(len(samples), -1).tolist())
        for file, image in zip(batch, read, strict=True):
            if isinstance(image, UnreadableImage):
                images.append(image)
            else:
                classes = scored_classes(next(rows), classification.activation)[:top]
                images.append(ClassifiedImage(file, tuple(classes)))
    return ClassifiedImages(model, answered, tuple(images))


def _read(preprocessing: ImagePreprocessing, file: Path) -> NDArray[Any] | UnreadableImage:
    try:
        return preprocessing.preprocess(file)
    except UsageError:
        raise
    except InputError as error:
        return UnreadableImage(file, error)


def _image_input(preprocessing: ImagePreprocessing, metadata: ModelMetadata) -> str:
    names = [spec.name for spec in metadata.inputs]
    if preprocessing.input is None:
        if len(names) == 1:
            return names[0]
        raise InputError(
            f"model {metadata.name!r} has {len(names)} inputs and {PARAMETER!r} names none of them",
            expected=f'"input" as one of {", ".join(names)}',
        )
    if preprocessing.input not in names:
        raise InputError(
            f"{PARAMETER!r} names the input {preprocessing.input!r}, which model {metadata.name!r} does not have",
            next_step=nearest(preprocessing.input, names),
        )
    return preprocessing.input


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
