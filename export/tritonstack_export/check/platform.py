"""Backends and platforms: the names Triton knows, and the model file each expects in a version folder."""

from __future__ import annotations

from tritonstack_export.check.finding import printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.repository.config_text import ModelConfig

# Backend -> names its platform field may have. The first is what Triton fills in.
PLATFORMS: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime_onnx",),
    "tensorrt": ("tensorrt_plan",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
}
_BACKEND_OF_PLATFORM = {platform: backend for backend, names in PLATFORMS.items() for platform in names}

# Backend -> model file under <version>/, None for backends that need none.
MODEL_FILES: dict[str, str | None] = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "python": "model.py",
    "openvino": "model.xml",
    "dali": "model.dali",
    "vllm": "model.json",
    "tensorflow": None,
    "fil": None,
    "tensorrtllm": None,
    "image_preprocess": None,
    "identity": None,
    "repeat": None,
    "square": None,
}


def resolve_backend(entry: ModelEntry, config: ModelConfig) -> None:
    """Set `entry.backend` from the config's backend and platform; report pairs Triton refuses."""
    findings = entry.findings
    backend, platform = config.backend, config.platform
    if platform == "ensemble" or (not backend and not platform and config.HasField("ensemble_scheduling")):
        entry.backend = "ensemble"
        if backend:
            findings.error(
                "backend",
                f"an ensemble has no backend, the config says {backend!r}",
                fix="remove the backend field",
                at=("backend",),
            )
        if not platform:
            findings.error(
                "backend",
                'ensemble_scheduling without platform: "ensemble"',
                fix='add platform: "ensemble"',
                at=("ensemble_scheduling",),
            )
        return
    if config.HasField("ensemble_scheduling"):
        findings.error(
            "backend",
            f"ensemble_scheduling in a model with {'backend' if backend else 'platform'} {backend or platform!r}",
            fix='set platform: "ensemble" and no backend, or remove ensemble_scheduling',
            at=("ensemble_scheduling",),
        )
    if not backend and not platform:
        findings.error(
            "backend",
            "neither backend nor platform is given: Triton would guess from file names",
            fix='add backend: "onnxruntime" (or what the model needs)',
            at=("max_batch_size",),
        )
        return
    if platform and not backend:
        if platform not in _BACKEND_OF_PLATFORM:
            hint = did_you_mean(platform, [*_BACKEND_OF_PLATFORM, "ensemble"])
            findings.error(
                "backend",
                f"unknown platform {platform!r}",
                fix=hint or 'name the backend instead: backend: "onnxruntime"',
                at=("platform",),
            )
            return
        backend = _BACKEND_OF_PLATFORM[platform]
    elif platform and platform not in PLATFORMS.get(backend, (platform,)):
        findings.error(
            "backend",
            f"platform {platform!r} does not belong to backend {backend!r}",
            fix=f"remove the platform field, or write {PLATFORMS[backend][0]!r}",
            at=("platform",),
        )
    entry.backend = backend
    if backend not in MODEL_FILES:
        hint = did_you_mean(backend, list(MODEL_FILES))
        findings.warning(
            "backend-unknown",
            f"the backend {printable(backend)!r} is not known to this tool, so its model files are not checked",
            fix=hint or "make sure that the server's backend directory has it",
            at=("backend",),
        )
