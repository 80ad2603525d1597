"""What is sent: a pool of distinct requests, made once before the run.

Sources: random or zero tensors shaped by the model's metadata, arrays or texts from the user, the requests of a JSONL
file, or pictures, as tensors or as the bytes of their files, whichever the model's own config asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from pathlib import Path

import numpy as np

from tritonstack.client.model import ModelConfigView, ModelMetadata
from tritonstack.errors import InputError, TensorError, UsageError
from tritonstack.load.generated_inputs import (
    RandomRequests,
    Ranges,
    check_shapes,
    generated_shapes,
    request_bytes,
    sample_dims,
    value_ranges,
    zeros,
)
from tritonstack.load.input_pool import Array, RequestExtras, array_bytes, pool_length
from tritonstack.load.input_pool import InputPool as InputPool
from tritonstack.tensor.array_file import read_array_file
from tritonstack.tensor.tensor_spec import TensorSpec

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class RandomInputs:
    """Seeded random values. Inputs with a range (of `ranges`, or of the model's parameter ``tritonstack.ranges``) hold
    values from low to high, both included; else floats lie in [0, 1), 8-bit integers anywhere, wider integers are 0
    or 1 (valid as token ids, masks and segment ids alike). BYTES are 16 letters."""

    seed: int = 0
    ranges: Ranges = field(default_factory=dict)


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
class TextInputs:
    """Texts, each one sample of the model's one input of type BYTES, or of the one called `input`."""

    texts: tuple[str, ...]
    origin: str = "texts"
    input: str | None = None


@dataclass(frozen=True)
class ImageInputs:
    """Picture files, each one sample of the model's image input."""

    paths: tuple[Path, ...]


@dataclass(frozen=True)
class JsonlInputs:
    """A file with one whole request in each line; see `jsonl_inputs`."""

    path: Path


InputSource = RandomInputs | ZeroInputs | ArrayInputs | TextInputs | ImageInputs | JsonlInputs


def build_pool(
    source: InputSource,
    *,
    metadata: ModelMetadata,
    config: ModelConfigView,
    batch: int,
    shapes: Mapping[str, Sequence[int]],
    size: int | None = None,
    expected: Mapping[str, Array] | None = None,
) -> InputPool:
    """The pool for one model.

    `shapes` gives the dims (without the batch) of inputs whose metadata leaves some open. `size` is how many distinct
    requests are wanted: as many random ones are made; of the user's own data at most so many are used (None: 16 or
    64 MB, of a JSONL file all). `expected` are the right outputs by name, sample by sample as the inputs are given.

    Raises UsageError where `batch`, `shapes` or `size` do not fit the model or the memory, TensorError or InputError
    where the data does not fit the model.
    """
    if size is not None and size < 1:
        raise UsageError("a pool holds at least one request", given=str(size), expected="1 or above")
    _check_batch(batch, metadata)
    check_shapes(shapes, metadata)
    if expected and isinstance(source, (RandomInputs, ZeroInputs, JsonlInputs)):
        raise UsageError(
            "expected outputs of a file belong to inputs of a file",
            next_step='give "expected" in the lines of the JSONL file'
            if isinstance(source, JsonlInputs)
            else "give the inputs too, or record the answers before the run",
        )
    match source:
        case RandomInputs(seed=seed, ranges=ranges):
            sizes = generated_shapes(metadata, batch, shapes)
            count = pool_length(request_bytes(sizes), size)
            limits = value_ranges(config, metadata, ranges)
            return InputPool(
                RandomRequests(sizes, seed=seed, count=count, ranges=limits), f"random, seed {seed}", cast=True
            )
        case ZeroInputs():
            sizes = generated_shapes(metadata, batch, shapes)
            return InputPool(({spec.name: zeros(spec, shape) for spec, shape in sizes.items()},), "zeros", cast=True)
        case ArrayInputs(arrays=arrays, origin=origin):
            return _pool_of_samples(arrays, origin, metadata, batch, size, expected)
        case TextInputs():
            return _pool_of_samples(_texts(source, metadata), source.origin, metadata, batch, size, expected)
        case ImageInputs(paths=paths):
            arrays, origin = _images(paths, metadata, config, batch, size)
            return _pool_of_samples(arrays, origin, metadata, batch, size, expected, of=len(paths))
        case JsonlInputs(path=path):
            from tritonstack.load.jsonl_inputs import read_jsonl

            return read_jsonl(path, metadata=metadata, batch=batch, most=size)


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


def load_texts(path: Path) -> tuple[str, ...]:
    """The lines of a UTF-8 text file without their ends; InputError where it cannot be read or has none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # Only line feeds end a line: texts may hold the other characters that Unicode calls line ends.
            texts = tuple(line.removesuffix("\n").removesuffix("\r") for line in file.read().split("\n"))
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(
            f"{str(path)!r}, line {line}: not UTF-8 text",
            given=repr(error.object[error.start : error.start + 8]),
            next_step='send other bytes as {"b64": "…"} in a JSONL file',
        ) from None
    texts = texts[:-1] if texts[-1] == "" else texts
    if not texts:
        raise InputError(f"{str(path)!r} holds no text", expected="one text in each line")
    return texts


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


def _pool_of_samples(
    arrays: Mapping[str, Array],
    origin: str,
    metadata: ModelMetadata,
    batch: int,
    size: int | None,
    expected: Mapping[str, Array] | None,
    *,
    of: int | None = None,
) -> InputPool:
    """A pool cut from samples; `of` is how many there were where only the first of them are here."""
    stacked = _stacked(arrays, metadata.inputs, metadata, "input")
    samples = next(iter(stacked.values())).shape[0] if stacked else 1
    requests = tuple(_cut(stacked, samples, metadata, batch, size))
    if not expected:
        return InputPool(requests, origin, cast=False)
    for name in expected:
        if name not in {spec.name for spec in metadata.outputs}:
            known = ", ".join(repr(spec.name) for spec in metadata.outputs)
            raise TensorError(f"model {metadata.name!r} has no output {name!r}", expected=f"outputs {known}")
    answers = _stacked(expected, metadata.outputs, metadata, "expected output")
    held = next(iter(answers.values())).shape[0]
    if held != (of or samples):
        raise TensorError(
            "there are not as many expected outputs as inputs", given=f"{held}", expected=f"{of or samples} samples"
        )
    right = _cut({name: array[:samples] for name, array in answers.items()}, samples, metadata, batch, len(requests))
    return InputPool(requests, origin, cast=False, extras=tuple(RequestExtras(expected=values) for values in right))


def _stacked(
    arrays: Mapping[str, Array], tensors: Sequence[TensorSpec], metadata: ModelMetadata, what: str
) -> dict[str, Array]:
    """The arrays with an axis 0 that counts samples, of the same length in all."""
    specs = {spec.name: spec for spec in tensors}
    stacked: dict[str, Array] = {}
    for name, array in arrays.items():
        # An unknown name is passed on as it is: preparing the request reports it with the names there are.
        rank = len(sample_dims(specs[name], metadata)) if name in specs else array.ndim
        stacked[name] = array[None] if array.ndim == rank else array
        if stacked[name].ndim == 0 or stacked[name].shape[0] == 0:
            raise TensorError(f"{what} {name!r} holds no sample", given=f"shape {list(array.shape)}")
    counts = {name: array.shape[0] for name, array in stacked.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise TensorError(f"the {what}s hold different numbers of samples", given=listed)
    return stacked


def _cut(
    stacked: Mapping[str, Array], samples: int, metadata: ModelMetadata, batch: int, size: int | None
) -> Iterator[dict[str, Array]]:
    """Requests from samples: sample i of request r is ``(r * batch + i) mod samples``."""
    per_request = batch if metadata.max_batch_size else 1
    distinct = samples // gcd(samples, per_request)
    if size is None:
        sample_bytes = sum(array_bytes(array[:1]) for array in stacked.values())
        size = pool_length(sample_bytes * per_request, None)
    for number in range(min(distinct, size)):
        chosen = np.arange(number * per_request, (number + 1) * per_request) % samples
        yield {
            name: array[chosen] if metadata.max_batch_size else array[int(chosen[0])] for name, array in stacked.items()
        }


def _texts(source: TextInputs, metadata: ModelMetadata) -> dict[str, Array]:
    """The texts as one array [sample, …] under the name of the input that takes them."""
    names = [spec.name for spec in metadata.inputs if spec.datatype == "BYTES"]
    name = source.input or (names[0] if len(names) == 1 else None)
    if name not in names:
        raise UsageError(
            f"model {metadata.name!r} has {len(names)} inputs of type BYTES"
            if source.input is None
            else f"model {metadata.name!r} has no input {source.input!r} of type BYTES",
            expected=f"one of {', '.join(names)}" if names else "a model that takes BYTES",
        )
    spec = metadata.input(str(name))
    dims = tuple(1 if dim < 0 else dim for dim in sample_dims(spec, metadata))
    if prod(dims) != 1:
        raise TensorError(
            f"input {name!r} takes {prod(dims)} texts in each sample",
            given="one text in each line",
            expected=spec.describe(metadata.max_batch_size),
            next_step="send them with a JSONL file",
        )
    array = np.empty(len(source.texts), dtype=object)
    array[:] = source.texts
    return {spec.name: array.reshape(len(source.texts), *dims)}


def _images(
    paths: Sequence[Path], metadata: ModelMetadata, config: ModelConfigView, batch: int, size: int | None
) -> tuple[dict[str, Array], str]:
    """The pictures as one array [sample, …] under the name of the model's image input, and words for the report."""
    from tritonstack.infer.picture_input import picture_input

    pictures = picture_input(config, metadata)
    first = pictures.read(paths[0])
    per_request = batch if metadata.max_batch_size else 1
    # Files differ in size, so the first one only says how many of them are read.
    used = paths[: max(pool_length(array_bytes(first) * per_request, size) * per_request, 1)]
    read = [first, *(pictures.read(path) for path in used[1:])]
    odd = next((path for path, sample in zip(used, read, strict=True) if sample.shape != first.shape), None)
    if odd is not None:
        raise InputError(
            f"the pictures differ in size after preprocessing, as {paths[0].name} and {odd.name} do",
            expected="a preprocessing that ends in one size (resize or center_crop)",
        )
    left = f" of {len(paths)}" if len(used) < len(paths) else ""
    words = "image file" if pictures.server_decodes else "image"
    return {pictures.name: np.stack(read)}, f"{len(used)}{left} {words}{'s' if len(used) != 1 else ''}"
