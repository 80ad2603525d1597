"""A builder configuration from the settings: each policy word becomes API calls, or fails where TensorRT lacks it."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

from tritonstack_export.engine.worker.events import Events, WorkerFailure


def make_config(
    trt: ModuleType, builder: Any, network: Any, request: dict[str, Any], events: Events, version: str
) -> Any:
    """The configuration of one build. Raises WorkerFailure (unsupported, profile)."""
    settings, is_rtx = request["settings"], request["home"]["rtx"]
    config = builder.create_builder_config()
    named = f"TensorRT-RTX {version}" if is_rtx else f"TensorRT {version}"
    config.builder_optimization_level = settings["optimization_level"]
    if settings["workspace_bytes"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings["workspace_bytes"])
    # Layer names and formats stay readable in the engine, which the read-back of the precision needs.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for word, wanted, flags in (
        ("version_compatible", settings["version_compatible"], ("VERSION_COMPATIBLE",)),
        ("weights: refit", settings["weights"] == "refit", ("REFIT",)),
        ("weights: stripped", settings["weights"] == "stripped", ("STRIP_PLAN", "REFIT_IDENTICAL")),
        ("sparsity", settings["sparsity"], ("SPARSE_WEIGHTS",)),
    ):
        for flag in flags if wanted else ():
            _set_flag(trt, config, flag, word, named)
    if settings["tf32"]:
        _set_flag(trt, config, "TF32", "tf32", named)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    _set_hardware(trt, config, settings["hardware"], is_rtx=is_rtx, named=named)
    if request["compute_capabilities"]:
        _set_targets(trt, config, request["compute_capabilities"], named)
    _add_profiles(builder, config, network, request["profiles"])
    if hasattr(trt, "IProgressMonitor") and hasattr(config, "progress_monitor"):
        config.progress_monitor = _monitor(trt, events)
    return config


def load_plugins(trt: ModuleType, logger: Any, libraries: list[str]) -> None:
    """Make TensorRT's own plugins and those of `libraries` known. Raises WorkerFailure (plugin)."""
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(logger, "")
    for library in libraries:
        # Registers itself when loaded, which is how Triton loads the libraries of its `plugins` option too.
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise WorkerFailure("plugin", str(error), library=library) from None


def _set_flag(trt: ModuleType, config: Any, flag: str, word: str, named: str) -> None:
    if not hasattr(trt.BuilderFlag, flag):
        raise WorkerFailure("unsupported", f"{word} is not supported by {named}", policy=word)
    config.set_flag(getattr(trt.BuilderFlag, flag))


def _set_hardware(trt: ModuleType, config: Any, policy: str, *, is_rtx: bool, named: str) -> None:
    level = {"same": "NONE", "same_compute_capability": "SAME_COMPUTE_CAPABILITY", "ampere_plus": "AMPERE_PLUS"}[policy]
    if level == "NONE":
        return
    # TensorRT-RTX has the enum, logs an error when it is set and builds on without it.
    if is_rtx or not hasattr(trt, "HardwareCompatibilityLevel") or not hasattr(trt.HardwareCompatibilityLevel, level):
        raise WorkerFailure("unsupported", f"hardware: {policy} is not supported by {named}", policy="hardware")
    config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)


def _set_targets(trt: ModuleType, config: Any, capabilities: list[str], named: str) -> None:
    lacking = not hasattr(config, "num_compute_capabilities") or not hasattr(config, "set_compute_capability")
    if lacking or not hasattr(trt, "ComputeCapability"):
        raise WorkerFailure(
            "unsupported",
            f"{named} builds for the GPU it runs on, not for chosen compute capabilities",
            policy="compute capabilities",
        )
    known = {f"{name[2:-1]}.{name[-1]}": value for name, value in _members(trt.ComputeCapability) if name[:2] == "SM"}
    config.num_compute_capabilities = len(capabilities)
    for index, capability in enumerate(capabilities):
        if capability not in known:
            raise WorkerFailure(
                "unsupported",
                f"{named} does not build for compute capability {capability}",
                policy="compute capabilities",
                known=sorted(known, key=lambda text: tuple(map(int, text.split(".")))),
            )
        config.set_compute_capability(known[capability], index)


def _members(enum: Any) -> list[tuple[str, Any]]:
    return list(enum.__members__.items())


def _add_profiles(builder: Any, config: Any, network: Any, profiles: list[dict[str, Any]]) -> None:
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    dynamic = {tensor.name for tensor in tensors if any(size < 0 for size in tensor.shape)}
    values = sorted(tensor.name for tensor in tensors if getattr(tensor, "is_shape_tensor", False))
    if values:
        raise WorkerFailure("profile", f"the values of input {values[0]!r} decide shapes", reason="shape values")
    for number, bounds in enumerate(profiles):
        profile = builder.create_optimization_profile()
        missing, unknown = sorted(dynamic - set(bounds)), sorted(set(bounds) - {tensor.name for tensor in tensors})
        if missing or unknown:
            what = f"lacks the dynamic input {missing[0]!r}" if missing else f"names {unknown[0]!r}, which is no input"
            raise WorkerFailure("profile", f"profile {number} {what}", reason="names")
        for name, (least, best, most) in bounds.items():
            profile.set_shape(name, least, best, most)
        # -1 instead of an exception when TensorRT does not like the bounds.
        if not profile or config.add_optimization_profile(profile) < 0:
            raise WorkerFailure("profile", f"profile {number} was refused: {bounds}", reason="bounds")
    if dynamic and not profiles:
        raise WorkerFailure("profile", f"the input {min(dynamic)!r} is dynamic, and no profile is given", reason="none")


def _monitor(trt: ModuleType, events: Events) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self._steps[phase] = steps
            if parent is None:
                events.progress(phase, 0.0)

        def step_complete(self, phase: str, step: int) -> bool:
            events.progress(phase, (step + 1) / max(1, self._steps.get(phase, 1)))
            return True

        def phase_finish(self, phase: str) -> None:
            self._steps.pop(phase, None)

    return Monitor()
