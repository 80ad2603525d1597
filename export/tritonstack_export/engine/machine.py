"""The machine that engines are built on and for: its TensorRT and its GPU."""

from __future__ import annotations

from dataclasses import dataclass

from tritonstack.errors import SetupError
from tritonstack_export.engine.build import probe
from tritonstack_export.engine.home import RtxHome, TensorRtHome, find_tensorrt


@dataclass(frozen=True)
class Machine:
    """TensorRT and the GPU. With an RtxHome engines are built for `compute_capability` without that GPU."""

    home: TensorRtHome | RtxHome
    tensorrt: str
    compute_capability: str
    gpu: str | None = None
    driver: str | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Compute capabilities to name to the builder: TensorRT itself builds for the GPU it runs on."""
        return (self.compute_capability,) if self.home.is_rtx else ()


def find_machine() -> Machine:
    """TensorRT and the GPU of this machine. Raises SetupError or EngineError, which say what is missing."""
    home = find_tensorrt()
    if home is None:
        raise SetupError(
            "TensorRT is not installed here",
            expected="the Python module tensorrt (or tensorrt_bindings beside the libraries of NVIDIA's Triton image)",
            next_step="run this in the image that serves the model, or install TensorRT of the server's version",
        )
    found = probe(home)
    if not found.devices:
        raise SetupError(
            "no GPU is visible here, and TensorRT builds for the GPU it runs on",
            next_step="run this where the GPU is, such as in a container started with --gpus",
        )
    kinds = sorted({(device.name, device.compute_capability) for device in found.devices})
    if len(kinds) > 1:
        raise SetupError(
            "GPUs of different kinds are visible, and an engine fits one kind",
            given=", ".join(f"{name} ({capability})" for name, capability in kinds),
            next_step="choose those that serve the model with CUDA_VISIBLE_DEVICES",
        )
    device = found.devices[0]
    return Machine(home, found.tensorrt, device.compute_capability, device.name, found.driver)
