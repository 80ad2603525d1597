"""What will run the engines of a repository: from flags, or from this machine."""

from __future__ import annotations

import re

from tritonstack.errors import TritonstackError, UsageError
from tritonstack_export.engine.plan_record import Target


def target_from_flags(tensorrt: str | None, compute_capability: str | None) -> Target | None:
    """The target that `--tensorrt` and `--compute-capability` describe; None when neither is given."""
    if tensorrt is None and compute_capability is None:
        return None
    if tensorrt is not None and not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,4}){1,3}", tensorrt):
        raise UsageError("argument --tensorrt: not a version", given=repr(tensorrt), expected="such as 10.14.1")
    capabilities = tuple(compute_capability.split(",")) if compute_capability is not None else ()
    for capability in capabilities:
        if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
            raise UsageError(
                "argument --compute-capability: not a compute capability",
                given=repr(capability),
                expected="such as 9.0, or several: 8.6,9.0",
            )
    return Target(tensorrt, capabilities)


def target_here() -> Target:
    """What this machine would serve engines with: its visible GPUs and its TensorRT, as far as they can be found.

    Starts a process that asks TensorRT and CUDA, where there is a GPU and a TensorRT; otherwise costs nothing.
    """
    from tritonstack_export.check.visible_gpus import visible_gpus
    from tritonstack_export.engine.build import probe
    from tritonstack_export.engine.home import find_tensorrt

    home = find_tensorrt() if visible_gpus() else None
    if home is None:
        return Target()
    try:
        found = probe(home)
    except TritonstackError:
        # A TensorRT that does not load judges nothing; the server has its own.
        return Target()
    return Target(found.tensorrt, tuple(dict.fromkeys(device.compute_capability for device in found.devices)))
