"""What is sent: a pool of distinct requests, made once before the run.

Sources: random or zero tensors shaped by the model's metadata, arrays from the user, or pictures turned into tensors
by the model's own `tritonstack.image` parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np

from tritonstack.client.model import ModelConfigView, ModelMetadata
from tritonstack.errors import InputError, TensorError, UsageError
from tritonstack.tensor.array_file import read_array_file
from tritonstack.tensor.datatype import datatype
from tritonstack.tensor.tensor_spec import TensorSpec
from tritonstack.terminal import human_bytes

Array = np.ndarray[Any, Any]

POOL_REQUESTS = 16
"""Distinct requests sent in turn; enough that no layer can live on one cached buffer."""
POOL_BYTES = 64_000_000
"""Bound on the pool's memory; at least one request is kept whatever its size."""
REQUEST_BYTES = 2**31 - 1
"""No protocol carries a larger request: a protobuf message ends there."""
TEXT_LENGTH = 16
"""Characters in each random BYTES element."""
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class RandomInputs:
    """Seeded random values: floats in [0, 1), 8-bit integers over their whole range, wider integers 0 or 1 (valid as
    token ids, masks and segment ids alike), BYTES of 16 letters."""

    seed: int = 0


@dataclass(frozen=True)
class ZeroInputs:
    """Zeros, False and empty BYTES elements."""


@dataclass(frozen=True)
class ArrayInputs:
    """Arrays by input name. Of a batching model axis 0 counts samples [sample, …], which are cut into batches in turn
    (without that axis it is one sample). Of any other model an additional axis 0 counts whole requests."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    origin: str = "arrays"


@dataclass(frozen=True)
class ImageInputs:
    """Picture files, each one sample of the model's image input."""

    paths: tuple[Path, ...]


InputSource = RandomInputs | ZeroInputs | ArrayInputs | ImageInputs


@dataclass(frozen=True)
class InputPool:
    """Requests to be sent in turn. `cast`: the arrays are generated and may be rounded to the model's data type."""

    requests: tuple[Mapping[str, Array], ...]
    origin: str
    cast: bool


def build_pool(
    source: InputSource,
    *,
    metadata: ModelMetadata,
    config: ModelConfigView,
    batch: int,
    shapes: Mapping[str, Sequence[int]],
) -> InputPool:
    """The pool for one model. `shapes` gives the dims (without the batch) of inputs whose metadata leaves some open.

    Raises UsageError where `batch` or `shapes` do not fit the model, TensorError or InputError where the data does not.
    """
    _check_batch(batch, metadata)
    _check_shapes(shapes, metadata)
    match source:
        case RandomInputs(seed=seed):
            sizes = _generated_shapes(metadata, batch, shapes)
            return InputPool(tuple(_random_requests(sizes, seed)), f"random, seed {seed}", cast=True)
        case ZeroInputs():
            sizes = _generated_shapes(metadata, batch, shapes)
            return InputPool(({s.name: _zeros(s, shape) for s, shape in sizes.items()},), "zeros", cast=True)
        case ArrayInputs(arrays=arrays, origin=origin):
            return InputPool(tuple(_cut(arrays, metadata, batch)), origin, cast=False)
        case ImageInputs(paths=paths):
            arrays, origin = _images(paths, metadata, config, batch)
            return InputPool(tuple(_cut(arrays, metadata, batch)), origin, cast=False)


def load_npy(path: Path) -> Array:
    """The array of a .npy file; InputError where it cannot be read."""
    array: Array | dict[str, Array] = read_array_file(path)
    if isinstance(array, dict):
        raise InputError(f"{path} holds several arrays", expected="a .npy file", next_step=f"use --data {path}")
    return array


def load_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file by name; InputError where it cannot be read."""
    arrays: Array | dict[str, Array] = read_array_file(path)
    if not isinstance(arrays, dict):
        raise InputError(
            f"{path} holds one array without a name", expected="an .npz file", next_step=f"use --input NAME=@{path}"
        )
    return arrays


def find_images(path: Path) -> tuple[Path, ...]:
    """A picture itself, or the pictures directly inside a folder, in order of name."""
    if not path.exists():
        raise InputError(f"no such file or folder: {path}")
    if not path.is_dir():
        return (path,)
    found = tuple(sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file()))
    if not found:
        raise InputError(f"no picture in {path}", expected=f"files ending in {', '.join(sorted(IMAGE_SUFFIXES))}")
    return found


def _check_batch(batch: int, metadata: ModelMetadata) -> None:
    limit = metadata.max_batch_size
    if batch < 1 or batch > max(limit, 1):
        expected = f"1 to {limit}" if limit else "1, since the model does not batch (max_batch_size 0)"
        raise UsageError(f"--batch does not fit model {metadata.name!r}", given=str(batch), expected=expected)


def _sample_dims(spec: TensorSpec, metadata: ModelMetadata) -> tuple[int, ...]:
    return spec.shape[1:] if metadata.max_batch_size else spec.shape


def _check_shapes(shapes: Mapping[str, Sequence[int]], metadata: ModelMetadata) -> None:
    specs = {spec.name: spec for spec in metadata.inputs}
    for name, dims in shapes.items():
        given = f"--shape {name}:{'x'.join(map(str, dims))}"
        if name not in specs:
            raise UsageError(
                f"model {metadata.name!r} has no input {name!r}", given=given, expected=f"one of {', '.join(specs)}"
            )
        wanted = _sample_dims(specs[name], metadata)
        fits = len(wanted) == len(dims) and all(w in (-1, d) for w, d in zip(wanted, dims, strict=True))
        if not fits or any(dim < 0 for dim in dims):
            text = "x".join("D" if dim < 0 else str(dim) for dim in wanted)
            batching = " (the batch is left out: it comes from --batch)" if metadata.max_batch_size else ""
            raise UsageError(f"the shape does not fit input {name!r}", given=given, expected=f"{text}{batching}")


def _generated_shapes(
    metadata: ModelMetadata, batch: int, shapes: Mapping[str, Sequence[int]]
) -> dict[TensorSpec, tuple[int, ...]]:
    """The whole shape of each input to generate; optional inputs are left out unless `shapes` names them."""
    sizes: dict[TensorSpec, tuple[int, ...]] = {}
    open_dims = []
    for spec in metadata.inputs:
        if spec.optional and spec.name not in shapes:
            continue
        dims = tuple(shapes.get(spec.name, _sample_dims(spec, metadata)))
        if any(dim < 0 for dim in dims):
            open_dims.append(f"--shape {spec.name}:{'x'.join('D' if dim < 0 else str(dim) for dim in dims)}")
        sizes[spec] = (batch, *dims) if metadata.max_batch_size else dims
    if open_dims:
        raise UsageError(
            f"model {metadata.name!r} leaves dimensions open, so their size has to be given",
            next_step=f"add {' '.join(open_dims)} with numbers for D",
        )
    size = _request_bytes(sizes)
    if size > REQUEST_BYTES:
        raise UsageError(
            "one request would be too large to send", given=human_bytes(size), expected="at most 2 GiB per request"
        )
    return sizes


def _request_bytes(sizes: Mapping[TensorSpec, tuple[int, ...]]) -> int:
    return sum(prod(shape) * (datatype(spec.datatype).byte_size or TEXT_LENGTH) for spec, shape in sizes.items())


def _random_requests(sizes: Mapping[TensorSpec, tuple[int, ...]], seed: int) -> Iterator[dict[str, Array]]:
    generator = np.random.Generator(np.random.PCG64(seed))
    for _ in range(_pool_length(_request_bytes(sizes))):
        yield {spec.name: _random(spec, shape, generator) for spec, shape in sizes.items()}


def _pool_length(bytes_per_request: int) -> int:
    return max(1, min(POOL_REQUESTS, POOL_BYTES // max(bytes_per_request, 1)))


def _random(spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    kind = datatype(spec.datatype)
    if kind.name == "BYTES":
        letters = generator.integers(97, 123, (prod(shape), TEXT_LENGTH), dtype=np.uint8)
        texts = np.empty(prod(shape), dtype=object)
        texts[:] = [row.tobytes() for row in letters]
        return texts.reshape(shape)
    if kind.numpy_dtype is None:  # BF16, rounded when it is prepared
        return generator.random(shape, dtype=np.float32)
    if kind.numpy_dtype.kind == "f":
        return generator.random(shape, dtype=np.float32).astype(kind.numpy_dtype)
    if kind.name in ("INT8", "UINT8"):
        info = np.iinfo(kind.numpy_dtype)
        return generator.integers(info.min, info.max, shape, dtype=kind.numpy_dtype, endpoint=True)
    return generator.integers(0, 2, shape, dtype=np.uint8).astype(kind.numpy_dtype)


def _zeros(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    kind = datatype(spec.datatype)
    if kind.name == "BYTES":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=np.float32 if kind.numpy_dtype is None else kind.numpy_dtype)


def _cut(arrays: Mapping[str, Array], metadata: ModelMetadata, batch: int) -> Iterator[dict[str, Array]]:
    """Requests from the user's arrays: sample i of request r is ``(r * batch + i) mod samples``."""
    specs = {spec.name: spec for spec in metadata.inputs}
    stacked: dict[str, Array] = {}
    for name, array in arrays.items():
        # An unknown name is passed on as it is: preparing the request reports it with the names there are.
        rank = len(_sample_dims(specs[name], metadata)) if name in specs else array.ndim
        stacked[name] = array[None] if array.ndim == rank else array
        if stacked[name].ndim == 0 or stacked[name].shape[0] == 0:
            raise TensorError(f"input {name!r} holds no sample", given=f"shape {list(array.shape)}")
    counts = {name: array.shape[0] for name, array in stacked.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise TensorError("the inputs hold different numbers of samples", given=listed)
    samples = next(iter(counts.values()), 1)
    sample_bytes = sum(array.nbytes // array.shape[0] for array in stacked.values())
    per_request = batch if metadata.max_batch_size else 1
    for number in range(min(samples // gcd(samples, per_request), _pool_length(sample_bytes * per_request))):
        chosen = np.arange(number * per_request, (number + 1) * per_request) % samples
        yield {
            name: array[chosen] if metadata.max_batch_size else array[int(chosen[0])] for name, array in stacked.items()
        }


def _images(
    paths: Sequence[Path], metadata: ModelMetadata, config: ModelConfigView, batch: int
) -> tuple[dict[str, Array], str]:
    """The pictures as one array [sample, …] under the name of the model's image input, and words for the report."""
    from tritonstack.image import ImagePreprocessing

    described = config.parameters.get("tritonstack.image")
    if described is None:
        raise InputError(
            f"model {metadata.name!r} does not say how a picture becomes its input",
            expected="the parameter 'tritonstack.image' in its config.pbtxt, which `tritonstack export` writes",
            next_step="send a prepared tensor with --input NAME=@file.npy",
        )
    preprocessing = ImagePreprocessing.from_json(described)
    name = preprocessing.input or (metadata.inputs[0].name if len(metadata.inputs) == 1 else None)
    if name is None:
        raise InputError(
            f"model {metadata.name!r} has several inputs and its 'tritonstack.image' names none of them",
            expected=f'"input" as one of {", ".join(spec.name for spec in metadata.inputs)}',
        )
    first = preprocessing.preprocess(paths[0])
    used = paths[: max(_pool_length(first.nbytes * batch) * batch, 1)]
    samples = np.stack([first, *(preprocessing.preprocess(path) for path in used[1:])])
    left = f" of {len(paths)}" if len(used) < len(paths) else ""
    return {name: samples}, f"{len(used)}{left} image{'s' if len(used) != 1 else ''}"
