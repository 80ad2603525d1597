"""The entries that let a model take encoded pictures.

    <model>_preprocess   backend image_preprocess: a picture's bytes -> the model's input
    <model>_images       the ensemble of the two: a picture's bytes -> the model's outputs, one for each variant

Variants whose inputs have the same data type share one preprocessing; a variant that differs has one of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import RepositoryError, UsageError
from tritonstack_export import publication
from tritonstack_export.entry_config import build_config, image_preprocessing, set_versions
from tritonstack_export.image_warmup import add_warmup, can_warm_up, warmup_files
from tritonstack_export.repository import parse_config
from tritonstack_export.repository.layout import iterate_entries
from tritonstack_export.spec import ModelSpec

if TYPE_CHECKING:
    from tritonstack.image import ImagePreprocessing
    from tritonstack_export.repository import ModelConfig
    from tritonstack_export.signature import Signature
    from tritonstack_export.spec_precision import PrecisionName
    from tritonstack_export.variant import Variant

BACKEND = "image_preprocess"
BYTES_PARAMETER = "tritonstack.image_bytes"
CLASSIFICATION = "tritonstack.classification"
BYTES_INPUT = "image_bytes"
PREPROCESSED = "preprocessed"
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")
"""The filters that the backend has; the client has lanczos besides."""

# Two, so that one decodes while the other's results are on their way.
_INSTANCES = 2


@dataclass(frozen=True)
class ImageEntry:
    """One entry to publish beside the variants. `labels`: whether it carries the model's label file. `files`: others
    that the config names, path below the model's folder -> content."""

    config: ModelConfig
    labels: bool
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.config.name)

    @property
    def format(self) -> str:
        """What its manifest calls it."""
        return "ensemble" if self.config.platform == "ensemble" else BACKEND


def image_entry_names(spec: ModelSpec) -> list[str]:
    """The names of all entries that `spec` asks for besides its variants; none unless ``preprocess.serve`` is set."""
    if not spec.preprocess.serve:
        return []
    variants = spec.precision.variants
    names = [_preprocess_name(spec, precision) for precision in variants]
    names += [_ensemble_name(spec.precision.model_name(spec.name, precision)) for precision in variants]
    return list(dict.fromkeys(names))


def require_supported(spec: ModelSpec) -> None:
    """Before any work: the backend has everything that ``preprocess.image`` asks for. Raises UsageError."""
    if spec.preprocess.serve and spec.preprocess.image is not None:
        _require_backend_filter(str(spec.preprocess.image.get("interpolation") or "bilinear"))


def backend_parameters(image: ImagePreprocessing) -> dict[str, str]:
    """The parameters with which the backend does just what `image` describes, bit for bit on a CPU.

    Raises UsageError for what the backend does not have.
    """
    _require_backend_filter(image.interpolation)
    parameters = {
        "resize": image.resize.mode,
        "interpolation": image.interpolation,
        "antialias": "true",
        "round_u8": "true",
        "channel_order": image.channel_order,
        "scale": _float32_text(image.scale),
        "mean": ",".join(map(_float32_text, image.mean)),
        "std": ",".join(map(_float32_text, image.std)),
        "layout": image.layout,
        "exif": "true" if image.exif else "false",
    }
    if image.resize.height is not None:
        parameters["height"] = str(image.resize.height)
        if image.resize.mode != "shorter":
            parameters["width"] = str(image.resize.width)
    if image.resize.mode == "letterbox":
        parameters["pad_value"] = str(image.resize.pad)
    if image.crop_fraction is not None:
        # A double on both sides: the side of the crop is rounded down from the product.
        parameters["crop_fraction"] = repr(float(image.crop_fraction))
    if image.center_crop is not None:
        parameters["center_crop"] = "x".join(map(str, image.center_crop))
    return parameters


def build_image_entries(spec: ModelSpec, signature: Signature, variants: Sequence[Variant]) -> list[ImageEntry]:
    """The preprocessings and the ensembles of `variants`; none unless the spec asks for them. Raises UsageError."""
    if not spec.preprocess.serve or spec.preprocess.image is None:
        return []
    preprocessings: dict[str, ImageEntry] = {}
    ensembles = []
    for variant in variants:
        image = image_preprocessing(spec.preprocess.image, variant.tensors, batched=signature.batched)
        model = build_config(spec, signature, variant.tensors, has_labels=spec.labels is not None, name=variant.name)
        taken = next(t for t in model.input if image.input in (None, t.name))
        if len(taken.dims) != 3:
            raise UsageError(
                f"preprocess.serve: the input {taken.name!r} has a leading dimension that is no batch",
                given=f"dims {list(taken.dims)}",
                expected="a model that batches (`batch`), or one whose input is just the picture",
            )
        name = _preprocess_name(spec, variant.precision)
        config = _preprocess_config(spec, name, image, model, taken)
        files = warmup_files(image) if config.model_warmup else {}
        earlier = preprocessings.setdefault(name, ImageEntry(config, labels=False, files=files))
        if earlier.config != config:
            raise UsageError(
                f"preprocess.serve: the variants need different preprocessings under the one name {name!r}",
                next_step="set preprocess.image.dtype to that of the model's input",
            )
        ensembles.append(ImageEntry(_ensemble_config(spec, name, model, taken), labels=spec.labels is not None))
    return [*preprocessings.values(), *ensembles]


def require_unshared(repository: Path, entries: Iterable[ImageEntry]) -> None:
    """A preprocessing is changed only together with all that call it. Raises RepositoryError."""
    entries = list(entries)
    together = {entry.name for entry in entries}
    for entry in entries:
        published = publication.existing_config(repository / entry.name)
        if entry.format != BACKEND or published is None or published.parameters == entry.config.parameters:
            continue
        others = [name for name in _callers(repository, entry.name) if name not in together]
        if others:
            raise RepositoryError(
                f"the preprocessing {entry.name!r} would change, and {others[0]!r} uses it too",
                given=", ".join(others),
                expected="all variants that share a preprocessing, exported together",
                next_step="add their precisions to --precision, or choose another --name",
            )


def _callers(repository: Path, name: str) -> list[str]:
    """The ensembles of `repository` with a step that calls `name`."""
    found = []
    for paths in iterate_entries(repository):
        try:
            config = parse_config(paths.config.read_bytes(), path=paths.config)
        except (OSError, RepositoryError):
            continue
        if any(step.model_name == name for step in config.ensemble_scheduling.step):
            found.append(paths.name)
    return found


def _ensemble_name(variant: str) -> str:
    return f"{variant}_images"


def _preprocess_name(spec: ModelSpec, precision: PrecisionName) -> str:
    """That of the bare name where the variant's inputs have the data type of the variant that bears it."""

    def own_type(variant: PrecisionName) -> str:
        settings = {"fp16": spec.precision.fp16, "bf16": spec.precision.bf16}.get(variant)
        return "" if settings is None or settings.keep_io_types else variant

    shared = own_type(precision) == own_type(spec.precision.bare)
    return f"{spec.name if shared else spec.precision.model_name(spec.name, precision)}_preprocess"


def _require_backend_filter(interpolation: str) -> None:
    if interpolation == "lanczos":
        raise UsageError(
            "preprocess.serve: the backend image_preprocess has no lanczos filter",
            expected=f"preprocess.image.interpolation: {', '.join(INTERPOLATIONS)}",
            next_step="choose one of them, or leave the preprocessing to the clients (serve: false)",
        )


def _float32_text(value: float) -> str:
    """The shortest text that is read back as the float32 nearest to `value`, whole numbers without a point."""
    import numpy as np

    text = str(np.float32(value))
    return text.removesuffix(".0")


def _preprocess_config(spec: ModelSpec, name: str, image: ImagePreprocessing, model: ModelConfig, taken: Any) -> Any:
    from tritonclient.grpc import model_config_pb2 as pb

    config = pb.ModelConfig(name=name, backend=BACKEND, max_batch_size=model.max_batch_size)
    config.input.add(name=BYTES_INPUT, data_type=pb.TYPE_STRING, dims=[1])
    height, width = image.output_size or (-1, -1)
    dims = [3, height, width] if image.layout == "NCHW" else [height, width, 3]
    config.output.add(name=PREPROCESSED, data_type=taken.data_type, dims=dims)
    group = config.instance_group.add(count=_INSTANCES)
    wanted = spec.serving.instance_group
    group.kind = pb.ModelInstanceGroup.Kind.Value(f"KIND_{wanted.kind.upper()}")
    group.gpus.extend(wanted.gpus)
    if model.HasField("dynamic_batching"):
        # Whatever waits is taken at once: pictures of any size share one launch.
        config.dynamic_batching.SetInParent()
    if spec.serving.warmup and can_warm_up(image):
        add_warmup(config, BYTES_INPUT, [warmup.batch_size for warmup in model.model_warmup] or [1])
    set_versions(config, spec)
    for key, value in backend_parameters(image).items():
        config.parameters[key].string_value = value
    return config


def _ensemble_config(spec: ModelSpec, preprocess: str, model: ModelConfig, taken: Any) -> Any:
    """Other inputs of the model are inputs of the ensemble too; the outputs are the model's own."""
    from tritonclient.grpc import model_config_pb2 as pb

    config = pb.ModelConfig(name=_ensemble_name(model.name), platform="ensemble", max_batch_size=model.max_batch_size)
    others = [tensor for tensor in model.input if tensor.name != taken.name]
    names = {tensor.name for tensor in (*others, *model.output)}
    picture, inner = (_free_name(name, names) for name in (BYTES_INPUT, PREPROCESSED))
    config.input.add(name=picture, data_type=pb.TYPE_STRING, dims=[1])
    for tensor in others:
        config.input.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, optional=tensor.optional)
    for tensor in model.output:
        config.output.add(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, label_filename=tensor.label_filename
        )
    first = config.ensemble_scheduling.step.add(model_name=preprocess, model_version=-1)
    first.input_map[BYTES_INPUT] = picture
    first.output_map[PREPROCESSED] = inner
    second = config.ensemble_scheduling.step.add(model_name=model.name, model_version=-1)
    second.input_map[taken.name] = inner
    for tensor in others:
        second.input_map[tensor.name] = tensor.name
    for tensor in model.output:
        second.output_map[tensor.name] = tensor.name
    set_versions(config, spec)
    config.parameters[BYTES_PARAMETER].string_value = json.dumps({"input": picture})
    if CLASSIFICATION in model.parameters:
        config.parameters[CLASSIFICATION].string_value = model.parameters[CLASSIFICATION].string_value
    return config


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
