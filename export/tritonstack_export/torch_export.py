"""A torch module to an ONNX file through torch.export: never the tracer, which keeps one branch in silence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import GateError, InternalError
from tritonstack_export import source_location
from tritonstack_export.captured_output import captured_output
from tritonstack_export.output_tree import flatten
from tritonstack_export.reference import Reference, call
from tritonstack_export.signature import Signature

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.export import ExportedProgram


def export_program(reference: Reference, example: Sequence[Tensor], *, log: Path) -> ExportedProgram:
    """Capture the whole graph with the signature's named dimensions.

    `example`: one tensor per input; none shares memory with another, since aliased inputs would become one. What
    torch prints is appended to `log`.
    Raises GateError naming the user's line for control flow on data and for dimensions that cannot be dynamic.
    """
    import torch

    signature, paths, inner = reference.signature, list(reference.outputs.values()), reference.module

    class Flat(torch.nn.Module):
        """Inputs by position, outputs as one flat tuple in the order they are published."""

        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
            tensors = flatten(call(self.model, signature.inputs, values)).tensors
            return tuple(tensors[path] for path in paths)

    flat = Flat()
    flat.training = False  # not .eval(), which would reach into the caller's module
    with captured_output() as captured:
        try:
            with torch.no_grad():
                return torch.export.export(
                    flat, tuple(example), dynamic_shapes=(_dynamic_shapes(signature),), strict=False
                )
        except Exception as error:
            raise _explain(error, _unrolled(inner)) from error
        finally:
            _keep_log(log, captured.text())


def _dynamic_shapes(signature: Signature) -> tuple[dict[int, Any], ...]:
    from torch.export import Dim

    # A range of one size, or up to 2 (torch.export treats 1 as special), would be taken for a constant.
    dims = {
        name: Dim(name, min=dimension.min, max=max(3, dimension.min + 1, dimension.max))
        for name, dimension in signature.dimensions.items()
    }
    return tuple(
        {axis: dims[name] for axis, name in enumerate(tensor.shape) if isinstance(name, str)}
        for tensor in signature.inputs
    )


def _unrolled(module: torch.nn.Module) -> str | None:
    """The class of a recurrent layer in the module, which torch.export writes out step by step."""
    import torch

    return next((type(part).__name__ for part in module.modules() if isinstance(part, torch.nn.RNNBase)), None)


def _explain(error: Exception, recurrent: str | None) -> GateError:
    text = str(error)
    at = source_location.of_error(error)
    place = f" at {at}" if at else ""
    code = source_location.from_stack_text(text)
    if "data-dependent" in text or "DataDependent" in type(error).__name__:
        return GateError(
            f"the model branches on the values of a tensor{place}{f' (`{code[1]}`)' if code and code[1] else ''}, "
            "and one graph cannot hold both branches",
            next_step="use torch.cond for the branch, or torch.where to choose between two results",
        )
    violated = re.search(r"Constraints violated \(([^)]*)\)", text)
    if violated:
        reasons = [line.strip(" -") for line in text.splitlines() if line.strip().startswith("- ")]
        reason = re.sub(
            r"L\['values'\]\[(\d+)\]\.size\(\)\[(\d+)\]", r"input \1 axis \2", reasons[0] if reasons else ""
        )
        constant = re.search(r"specialized it to be a constant \((\d+)\)", reason)
        if constant and recurrent:
            return GateError(
                f"the dimension {violated[1]} cannot be dynamic: the model fixes it at {constant[1]}, the example's "
                f"size, and it holds a recurrent layer ({recurrent}), which torch.export unrolls over its steps",
                next_step="write the number of steps as a fixed number in the shapes of the spec, and pad to it",
            )
        reason = (
            f"the model fixes it at {constant[1]}, the example's size (a number in reshape, view or expand?)"
            if constant
            else re.sub(r"\s+", " ", reason.split("If you're")[0])[:240]
        )
        return GateError(
            f"the dimension {violated[1]} cannot be dynamic: {reason}",
            next_step="use x.shape[0] or -1 in place of numbers, drop branches on sizes, or narrow the bounds",
        )
    detail = source_location.first_line(error)
    return GateError(f"torch.export cannot capture the model{place}: {type(error).__name__}: {detail}")


def write_onnx(program: ExportedProgram, path: Path, *, opset: int, external_data: bool, log: Path) -> None:
    """Translate a captured graph to ONNX at `opset` and write `path` (and `path`.data with `external_data`).

    What the exporter prints is appended to `log`. Raises GateError naming the operator that has no translation.
    """
    import torch

    with captured_output() as captured:
        try:
            result = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False, optimize=True)
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            operators = re.findall(
                r"No ONNX function found for <OpOverload\(op='([^']+)'", f"{error}\n{cause}\n{captured.text()}"
            )
            what = (
                f"no ONNX translation for {', '.join(sorted(set(operators)))}"
                if operators
                else (f"{type(cause).__name__}: {source_location.first_line(cause)}")
            )
            raise GateError(
                f"the ONNX exporter failed: {what}", next_step="--keep-work DIR keeps what it printed"
            ) from error
        finally:
            _keep_log(log, captured.text())
        if result is None:
            raise InternalError("torch.onnx.export returned nothing")
        result.save(str(path), external_data=external_data)


def _keep_log(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
