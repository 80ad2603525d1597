"""The gates: what has to hold of a model before it may be served in batches. Each raises GateError.

They run first on the PyTorch model (a fault of the model is named as such) and then on the ONNX file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tritonstack.errors import GateError
from tritonstack_export.parity import ParityRow, Tolerance, distance
from tritonstack_export.samples import Array
from tritonstack_export.signature import Signature
from tritonstack_export.spec import BATCH

Arrays = Mapping[str, Array]
Run = Callable[[Arrays], dict[str, Array]]
Tolerances = Mapping[str, Tolerance]


def sizes_text(sizes: Mapping[str, int]) -> str:
    """``batch 3, sequence 17``."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the fixed shapes"


def require_finite(outputs: Arrays, sizes: Mapping[str, int]) -> None:
    """No NaN on inputs within the range the spec gives."""
    for name, value in outputs.items():
        if value.dtype.kind == "f" and np.isnan(value).any():
            raise GateError(
                f"the output {name!r} holds NaN at {sizes_text(sizes)}",
                expected="numbers, for inputs within `range`",
                next_step="set `range` of the inputs to values the model is made for",
            )


def require_deterministic(
    first: Arrays, second: Arrays, tolerances: Tolerances, *, runner: str, culprits: Callable[[], list[str]]
) -> None:
    """Two runs on the same input agree. `culprits` finds what draws random numbers."""
    for name, value in first.items():
        if distance(value, second[name], tolerances[name]).problem:
            found = culprits()
            raise GateError(
                f"the model is not deterministic in eval mode{f' ({found[0]})' if found else ''}: two runs of {runner} "
                f"on the same input give different {name!r}",
                next_step="make random layers depend on self.training, as torch.nn.Dropout does",
            )


def require_batch_first(
    outputs: Arrays, sizes: Mapping[str, int], ranks: Mapping[str, int], *, squeezes: Callable[[], list[str]]
) -> None:
    """Dimension 0 of every output is the batch size, and its rank is that in `ranks` (seen at another size)."""
    batch = sizes[BATCH]
    for name, value in outputs.items():
        if value.ndim != ranks[name]:
            found = squeezes()
            reason = f" (squeeze without dim, {found[0].removeprefix('squeeze at ')})" if found else ""
            raise GateError(
                f"output rank changes with the batch{reason}: {name!r} has shape {list(value.shape)} at batch {batch} "
                f"and rank {ranks[name]} at other batches",
                next_step="name the dimension, as in squeeze(1) or flatten(1)",
            )
        if value.ndim == 0 or value.shape[0] != batch:
            raise GateError(
                f"output {name!r} does not follow the batch dimension",
                given=f"shape {list(value.shape)} at batch {batch}",
                expected=f"{batch} as its first dimension",
                next_step="keep the batch as dimension 0, or set `batch: false` (--no-batch) to serve it unbatched",
            )


def require_independent(
    run: Run,
    inputs: Arrays,
    outputs: Arrays,
    strangers: Arrays,
    signature: Signature,
    tolerances: Tolerances,
    *,
    runner: str,
) -> None:
    """Each sample's result is the same whatever it is batched with: requests of strangers share a batch in Triton.

    Compared with the sample alone, or where batches of one are not served, with it among `strangers` (other inputs
    of the same shapes).
    """
    batch = next(iter(inputs.values())).shape[0]
    smallest = signature.dimensions[BATCH].min
    for index in sorted({0, batch // 2, batch - 1}):
        here = slice(index, index + 1)
        expected = {name: value[here] for name, value in outputs.items()}
        if smallest == 1:
            found = run({name: value[here].copy() for name, value in inputs.items()})
            how = f"alone (sample {index} of {batch})"
        else:
            mixed = {name: value.copy() for name, value in strangers.items()}
            for name, value in inputs.items():
                mixed[name][here] = value[here]
            found = {name: value[here] for name, value in run(mixed).items()}
            how = f"with other companions (sample {index} of {batch})"
        _compare_samples(found, expected, tolerances, runner, how)


def _compare_samples(found: Arrays, expected: Arrays, tolerances: Tolerances, runner: str, how: str) -> None:
    for name, value in expected.items():
        problem = distance(value, found[name], tolerances[name]).problem
        if problem:
            raise GateError(
                f"a sample's {name!r} depends on the others in its batch: {runner}, {how}: {problem}",
                expected="the same result for a sample whatever it is batched with",
                next_step="look for means, norms or sorts over dimension 0 (BatchNorm with track_running_stats=False?)",
            )


def compare_with_reference(
    expected: Arrays, found: Arrays, sizes: Mapping[str, int], example: Mapping[str, int], tolerances: Tolerances
) -> list[ParityRow]:
    """Rows of the parity table at one set of sizes; raises GateError at the first output out of tolerance."""
    rows = []
    for name, value in expected.items():
        result = distance(value, found[name], tolerances[name])
        if result.problem:
            seen = "the size the exporter saw" if sizes == example else "a size the exporter did not see"
            raise GateError(
                f"ONNX Runtime and PyTorch disagree: {name!r} {result.problem} at {sizes_text(sizes)} ({seen})",
                next_step="look for branches on sizes and for operators the exporter translates wrongly, or loosen "
                "`parity` in the spec if the difference is acceptable",
            )
        rows.append(ParityRow(name, dict(sizes), result))
    return rows
