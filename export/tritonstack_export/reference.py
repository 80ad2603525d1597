"""The PyTorch model as a function of named arrays: the truth that every gate compares with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tritonstack.errors import InputError
from tritonstack_export import source_location
from tritonstack_export.captured_output import captured_output
from tritonstack_export.output_tree import OutputTree, Path, flatten
from tritonstack_export.samples import Array
from tritonstack_export.signature import ModelInput, Signature

if TYPE_CHECKING:
    from torch import Tensor, nn


class Reference:
    """Runs `module` on named numpy arrays. `outputs` (name -> path) is set once the outputs are named."""

    def __init__(self, module: nn.Module, signature: Signature) -> None:
        self.module = module
        self.signature = signature
        self.outputs: dict[str, Path] = {}

    def tree(self, inputs: Mapping[str, Array]) -> OutputTree:
        """One forward pass. Raises InputError naming the shapes and the user's line when it fails."""
        return self.tree_of(self.tensors(inputs))

    def tree_of(self, tensors: Sequence[Tensor]) -> OutputTree:
        """One forward pass on tensors in the order of the inputs."""
        import torch

        try:
            with torch.no_grad(), captured_output():
                value = call(self.module, self.signature.inputs, tensors)
        except Exception as error:
            shapes = ", ".join(
                f"{tensor.name} {list(value.shape)}"
                for tensor, value in zip(self.signature.inputs, tensors, strict=True)
            )
            at = source_location.from_traceback(error.__traceback__)
            raise InputError(
                f"the model's forward fails{f' at {at}' if at else ''}: "
                f"{type(error).__name__}: {source_location.first_line(error)}",
                given=shapes,
                next_step="check names, shapes, dtypes and `range` of `inputs` in the spec",
            ) from error
        return flatten(value)

    def tensors(self, inputs: Mapping[str, Array]) -> tuple[Tensor, ...]:
        """Fresh tensors in the order of the inputs: none shares memory with another."""
        import torch

        return tuple(torch.from_numpy(inputs[tensor.name].copy()) for tensor in self.signature.inputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Output name -> array."""
        tree = self.tree(inputs)
        return {name: to_numpy(name, tree.tensors[path]) for name, path in self.outputs.items()}


def call(module: Callable[..., Any], inputs: Sequence[ModelInput], values: Sequence[Any]) -> Any:
    """Pass `values` to `module` by position or by keyword, as the signature says."""
    positional = [value for tensor, value in zip(inputs, values, strict=True) if tensor.parameter is None]
    named = {t.parameter: value for t, value in zip(inputs, values, strict=True) if t.parameter is not None}
    return module(*positional, **named)


def to_numpy(name: str, tensor: Tensor) -> Array:
    """A dense numpy copy. Raises InputError for dtypes that numpy lacks."""
    import torch

    if tensor.layout != torch.strided or tensor.dtype in (torch.bfloat16,) or tensor.is_complex():
        kind = str(tensor.dtype if tensor.layout == torch.strided else tensor.layout).removeprefix("torch.")
        raise InputError(
            f"the output {name!r} is {kind}, which ONNX Runtime and Triton's clients do not share",
            next_step="convert it in forward, for instance with .float()",
        )
    array: Array = tensor.detach().cpu().numpy()
    return array.copy()
