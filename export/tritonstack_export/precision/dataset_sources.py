"""Read the data sets that a spec names: pictures, an .npz, or a Python iterator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tritonstack.errors import InputError, TritonstackError, UsageError
from tritonstack_export import factory, source_location
from tritonstack_export.precision import dataset, npz_file
from tritonstack_export.precision.dataset import Dataset
from tritonstack_export.samples import Array
from tritonstack_export.signature import Signature
from tritonstack_export.spec import ModelSpec
from tritonstack_export.spec_precision import DataSource, Evaluation

Triple = tuple[str, Mapping[str, Array], Any]

_DECODERS = 2
"""Threads that decode pictures: Pillow lets go of the interpreter's lock while it does."""


def read_calibration(spec: ModelSpec, signature: Signature, folder: Path) -> Dataset:
    """The calibration samples of the spec, different from each other. `folder`: what its paths are relative to.

    Raises UsageError for a key that leads nowhere, InputError for data that do not fit, are too few, or from which
    no range can be learnt.
    """
    source = spec.calibration
    if source is None:
        raise UsageError(
            "INT8 needs `calibration` in the spec: real inputs on which the ranges are observed",
            expected="calibration: {images: FOLDER}, {npz: FILE} or {python: file.py:callable}",
        )
    found = _read("calibration", source, spec, signature, folder, labels=None)
    dataset.require_enough(found, source.min_samples)
    return dataset.require_variety(found)


def read_evaluation(
    spec: ModelSpec, signature: Signature, folder: Path, *, labels: Sequence[str] | None = None
) -> Dataset | None:
    """The labelled samples of the spec, None where it has none. `labels`: names of the classes, for class folders."""
    if spec.evaluation is None:
        return None
    return _read("evaluation", spec.evaluation, spec, signature, folder, labels=labels)


def _read(
    key: str,
    source: DataSource,
    spec: ModelSpec,
    signature: Signature,
    folder: Path,
    *,
    labels: Sequence[str] | None,
) -> Dataset:
    evaluation = source if isinstance(source, Evaluation) else None
    samples: Iterable[Triple]
    if source.images is not None:
        where = source.images
        samples = _pictures(key, source, where, evaluation, spec, signature, folder, labels)
    elif source.npz is not None:
        where = source.npz
        samples = _npz(key, source, where, evaluation, signature, folder)
    else:
        where = str(source.python)
        samples = _iterator(key, source, where, evaluation, signature, folder)
    return dataset.collect(key, where, samples, signature, keep_repeats=evaluation is not None)


def spread(count: int, limit: int | None) -> list[int]:
    """Up to `limit` indices, evenly over 0 .. count − 1."""
    if limit is None or limit >= count:
        return list(range(count))
    return [index * count // limit for index in range(limit)]


def _pictures(
    key: str,
    source: DataSource,
    where: str,
    evaluation: Evaluation | None,
    spec: ModelSpec,
    signature: Signature,
    folder: Path,
    class_names: Sequence[str] | None,
) -> Iterator[Triple]:
    from tritonstack.image import ImagePreprocessing

    if spec.preprocess.image is None:
        raise UsageError(
            f"`{key}.images` needs `preprocess.image` in the spec", expected="how a picture becomes the model's input"
        )
    preprocessing = ImagePreprocessing.from_dict(spec.preprocess.image)
    if len(signature.inputs) != 1:
        names = ", ".join(repr(tensor.name) for tensor in signature.inputs)
        raise UsageError(
            f"`{key}.images` fills one input, and the model has {len(signature.inputs)} ({names})",
            expected=f"`{key}.npz` or `{key}.python`",
        )
    name, rank = signature.inputs[0].name, len(signature.inputs[0].shape)
    root = (folder / where).resolve()
    if not root.is_dir():
        raise UsageError(f"`{key}.images`: no such folder {where!r}", expected=f"a path relative to {folder}")
    paths = _picture_files(root)
    if not paths:
        raise InputError(f"`{key}.images`: no pictures in {where!r}", expected="files that Pillow reads")
    if evaluation is None:
        labelled: list[tuple[Path, Any]] = [(path, None) for path in paths]
    else:
        labelled = _picture_labels(evaluation, root, paths, folder, class_names)
    chosen = [labelled[index] for index in spread(len(labelled), source.limit)]

    def decode(entry: tuple[Path, Any]) -> Array | TritonstackError:
        try:
            return preprocessing.preprocess(entry[0])
        except TritonstackError as error:
            return error

    broken: list[TritonstackError] = []
    with ThreadPoolExecutor(_DECODERS) as pool:
        for start in range(0, len(chosen), 64):
            part = chosen[start : start + 64]
            for (path, label), value in zip(part, pool.map(decode, part), strict=True):
                if isinstance(value, TritonstackError):
                    broken.append(value)
                elif not broken:
                    whole = value[np.newaxis] if signature.batched or value.ndim == rank - 1 else value
                    yield path.relative_to(root).as_posix(), {name: whole}, label
    if broken:
        more = f" (and {len(broken) - 1} more pictures cannot be read)" if len(broken) > 1 else ""
        raise InputError(f"`{key}.images`: {broken[0]}{more}", next_step="mend or remove what cannot be read")


def _picture_files(root: Path) -> list[Path]:
    """All pictures below `root` by their extension, in the order of their paths; hidden ones are left out."""
    from PIL import Image

    known = set(Image.registered_extensions())
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix.lower() in known
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
        and path.is_file()
    )


def _picture_labels(
    evaluation: Evaluation, root: Path, paths: Sequence[Path], folder: Path, class_names: Sequence[str] | None
) -> list[tuple[Path, Any]]:
    if evaluation.labels is None:
        return [(path, _folder_label(path.relative_to(root), class_names)) for path in paths]
    file = folder / evaluation.labels
    try:
        table = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"`evaluation.labels`: cannot read {evaluation.labels!r}: {error.strerror}",
            expected=f"a path relative to {folder}",
        ) from error
    except ValueError as error:
        raise InputError(f"`evaluation.labels`: {evaluation.labels!r} is not JSON: {error}") from error
    if not isinstance(table, dict) or not table:
        raise InputError(
            f"`evaluation.labels`: {evaluation.labels!r} holds no labels",
            expected='{"picture.jpg": class index or [accepted indices]}',
        )
    found = {path.relative_to(root).as_posix(): path for path in paths}
    missing = sorted(set(table) - set(found))
    if missing:
        raise InputError(
            f"`evaluation.labels` names {len(missing)} pictures that are not there, such as {missing[0]!r}",
            expected=f"paths relative to {evaluation.images}",
        )
    return [(found[name], table[name]) for name in sorted(table)]


def _folder_label(path: Path, class_names: Sequence[str] | None) -> int:
    name = path.parts[0] if len(path.parts) > 1 else ""
    if name.isdecimal():
        return int(name)
    if class_names is not None and name in class_names:
        return list(class_names).index(name)
    raise InputError(
        f"`evaluation.images`: {path.as_posix()!r} lies in no folder of a class",
        given=f"folder {name!r}" if name else "the folder itself",
        expected="one folder per class, named by the class index or by its label" if class_names else
        "one folder per class, named by the class index, or `evaluation.labels`",
    )  # fmt: skip


def _npz(
    key: str, source: DataSource, where: str, evaluation: Evaluation | None, signature: Signature, folder: Path
) -> Iterator[Triple]:
    path = folder / where
    if not path.is_file():
        raise UsageError(f"`{key}.npz`: no such file {where!r}", expected=f"a path relative to {folder}")
    arrays = npz_file.read_arrays(path, f"`{key}.npz`: {where!r}")
    labels = None
    if evaluation is not None:
        if evaluation.labels is None or evaluation.labels not in arrays:
            raise UsageError(
                "`evaluation.labels`: expected the name of the array that holds the labels",
                given=repr(evaluation.labels),
                expected=f"one of {', '.join(arrays)}",
            )
        labels = arrays.pop(evaluation.labels)
    count = _common_length(key, where, arrays, labels)
    for index in spread(count, source.limit):
        inputs = {
            name: value[index : index + 1] if signature.batched else value[index] for name, value in arrays.items()
        }
        yield f"sample {index} of {where}", inputs, _label_at(labels, index)


def _common_length(key: str, where: str, arrays: Mapping[str, Array], labels: Array | None) -> int:
    lengths = {name: value.shape[0] if value.ndim else None for name, value in arrays.items()}
    if labels is not None:
        lengths["the labels"] = labels.shape[0] if labels.ndim else None
    if not arrays:
        raise InputError(f"`{key}.npz`: {where!r} holds no arrays")
    if None in lengths.values() or len(set(lengths.values())) != 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(
            f"`{key}.npz`: the arrays of {where!r} do not have one number of samples",
            given=said,
            expected="the samples along axis 0 of every array",
        )
    return int(next(length for length in lengths.values() if length is not None))


def _label_at(labels: Array | None, index: int) -> Any:
    if labels is None:
        return None
    label = labels[index]
    return label.item() if label.ndim == 0 else label


def _iterator(
    key: str, source: DataSource, where: str, evaluation: Evaluation | None, signature: Signature, folder: Path
) -> Iterator[Triple]:
    """Samples of a callable, until `limit`: its length is not known, so they are the first ones and not spread."""
    function = factory.import_attribute(where, folder=folder, key=f"{key}.python")
    if not callable(function):
        raise UsageError(f"{key}.python: {where!r} cannot be called")
    count = 0
    iterator = _guarded(f"{key}.python", where, function, source.arguments)
    for position, item in enumerate(iterator):
        name = f"item {position} of {where}"
        label: Any = None
        if evaluation is not None:
            if not (isinstance(item, tuple) and len(item) == 2):
                raise InputError(
                    f"`{key}.python`: {name} is {_kind(item)}", expected="a pair (inputs, label) for each sample"
                )
            item, label = item
        arrays = _as_arrays(item, signature, f"`{key}.python`: {name}")
        for part, part_label in _single_samples(arrays, label, signature, evaluation is not None, f"`{key}`: {name}"):
            yield name, part, part_label
            count += 1
            if source.limit is not None and count >= source.limit:
                return


def _guarded(key: str, where: str, function: Any, arguments: Mapping[str, Any]) -> Iterator[Any]:
    """What the callable yields; its own exceptions become InputErrors that name the place."""
    try:
        made = function(**arguments)
        if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
            raise InputError(f"`{key}`: {where!r} returned {_kind(made)}", expected="something to iterate over")
        yield from made
    except TritonstackError:
        raise
    except Exception as error:
        at = source_location.from_traceback(error.__traceback__)
        raise InputError(
            f"`{key}`: {where!r} failed{f' at {at}' if at else ''}: "
            f"{type(error).__name__}: {source_location.first_line(error)}"
        ) from error


def _kind(value: object) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def _as_arrays(item: Any, signature: Signature, where: str) -> dict[str, Array]:
    names = [tensor.name for tensor in signature.inputs]
    if isinstance(item, Mapping):
        values = {str(name): value for name, value in item.items()}
    elif isinstance(item, tuple | list) and not (len(names) == 1 and item and isinstance(item[0], int | float)):
        if len(item) != len(names):
            raise InputError(f"{where} has {len(item)} inputs", expected=f"{len(names)}: {', '.join(names)}")
        values = dict(zip(names, item, strict=True))
    elif len(names) == 1:
        values = {names[0]: item}
    else:
        raise InputError(f"{where} is {_kind(item)}", expected=f"a dict with {', '.join(map(repr, names))}")
    arrays = {}
    for name, value in values.items():
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        try:
            arrays[name] = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{where} has an input {name!r} that is no array: {source_location.first_line(error)}",
                given=_kind(value),
                expected="a numpy array, a tensor, or nested lists of equal lengths",
            ) from error
        if arrays[name].dtype.kind in "US":
            arrays[name] = arrays[name].astype(object)
    return arrays


def _single_samples(
    arrays: dict[str, Array], label: Any, signature: Signature, labelled: bool, where: str
) -> Iterator[tuple[dict[str, Array], Any]]:
    """One batch as samples of batch 1, with their labels. Arrays without the batch axis are one sample."""
    ranks = {tensor.name: len(tensor.shape) for tensor in signature.inputs}
    if not signature.batched:
        yield arrays, label
        return
    if all(name in ranks and value.ndim == ranks[name] - 1 for name, value in arrays.items()):
        yield {name: value[np.newaxis] for name, value in arrays.items()}, label
        return
    sizes = {value.shape[0] if value.ndim else 0 for value in arrays.values()}
    if len(sizes) != 1 or sizes == {0}:
        raise InputError(
            f"{where} has inputs of different batch sizes", given=str({n: list(v.shape) for n, v in arrays.items()})
        )
    size = sizes.pop()
    if not labelled or size == 1:
        labels = [label] * size
    else:
        labels = list(label) if hasattr(label, "__len__") else []
        if len(labels) != size:
            raise InputError(
                f"{where} has {size} samples and {len(labels) or 'one'} label", expected="one label for each sample"
            )
    for index in range(size):
        yield {name: value[index : index + 1] for name, value in arrays.items()}, labels[index]
