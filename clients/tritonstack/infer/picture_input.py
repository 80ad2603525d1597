"""How a served model takes pictures: as a tensor that the client makes of them, or as the bytes of their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tritonstack.client.model import ModelConfigView, ModelMetadata
from tritonstack.errors import InputError, UsageError
from tritonstack.image import ImagePreprocessing
from tritonstack.tensor.conform import nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARAMETER = "tritonstack.image"
BYTES_PARAMETER = "tritonstack.image_bytes"


class PictureInput(Protocol):
    """The input of a model that takes the picture. `server_decodes`: the server may find that a picture is bad."""

    @property
    def name(self) -> str: ...
    @property
    def server_decodes(self) -> bool: ...
    def read(self, file: Path) -> NDArray[Any]:
        """One sample. Raises InputError where the picture cannot be used, UsageError where the description is wrong."""
        ...


@dataclass(frozen=True)
class TensorInput:
    """Pictures are preprocessed here, as the model describes it."""

    name: str
    preprocessing: ImagePreprocessing
    server_decodes: bool = False

    def read(self, file: Path) -> NDArray[Any]:
        return self.preprocessing.preprocess(file)


@dataclass(frozen=True)
class BytesInput:
    """Files are sent as they are: one element of type BYTES per sample."""

    name: str
    server_decodes: bool = True

    def read(self, file: Path) -> NDArray[Any]:
        import numpy as np

        try:
            data = file.read_bytes()
        except OSError as error:
            raise InputError(f"image file {str(file)!r} cannot be read: {error.strerror}") from None
        if not data:
            raise InputError(f"image file {str(file)!r} is empty", expected="an encoded picture such as JPEG or PNG")
        return np.array([data], dtype=np.object_)


def picture_input(config: ModelConfigView, metadata: ModelMetadata) -> PictureInput:
    """What the model's own config says. InputError where it says nothing, or something that makes no sense."""
    if BYTES_PARAMETER in config.parameters:
        return BytesInput(_bytes_name(config, metadata))
    preprocessing = read_preprocessing(config)
    return TensorInput(_tensor_name(preprocessing, metadata), preprocessing)


def read_preprocessing(config: ModelConfigView) -> ImagePreprocessing:
    """The model's own image preprocessing. InputError where it has none or one that makes no sense."""
    text = config.parameters.get(PARAMETER)
    if text is None:
        raise InputError(
            f"model {config.name!r} does not say how a picture becomes its input",
            expected=f"the parameter {PARAMETER!r} or {BYTES_PARAMETER!r} in its config.pbtxt, which "
            "`tritonstack export` writes",
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


def _bytes_name(config: ModelConfigView, metadata: ModelMetadata) -> str:
    text = config.parameters[BYTES_PARAMETER]
    try:
        name = json.loads(text)["input"]
    except (ValueError, KeyError, TypeError):
        name = None
    tensor = next((spec for spec in metadata.inputs if spec.name == name), None)
    if tensor is None or tensor.datatype != "BYTES":
        raise InputError(
            f"the parameter {BYTES_PARAMETER!r} of model {config.name!r} makes no sense",
            given=text,
            expected='{"input": "<an input of type BYTES>"}',
        )
    return tensor.name


def _tensor_name(preprocessing: ImagePreprocessing, metadata: ModelMetadata) -> str:
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
