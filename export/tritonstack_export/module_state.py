"""Hold a module in eval mode for a while and give it back exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tritonstack.errors import GateError

if TYPE_CHECKING:
    from torch import Tensor, nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[bool]:
    """Eval mode with gradients off; yields whether any submodule was in training mode.

    Afterwards every submodule has its own mode back, and every buffer its bits. Raises GateError when a forward
    pass changed a buffer or a parameter: such a model keeps state between calls, which an ONNX graph cannot.
    """
    import torch

    modes = [(part, part.training) for part in module.modules()]
    buffers = _buffers(module)
    kept = {name: tensor.detach().clone() for name, (_, _, tensor) in buffers.items()}
    parameters = [(name, parameter, parameter._version) for name, parameter in module.named_parameters()]
    try:
        module.eval()
        with torch.no_grad():
            yield any(training for _, training in modes)
    finally:
        for part, training in modes:
            part.training = training
        changed = _restore(module, buffers, kept)
    changed += [f"parameter {name}" for name, parameter, version in parameters if parameter._version != version]
    if changed:
        raise GateError(
            f"the model changes its own state in a forward pass: {', '.join(changed[:4])}",
            expected="a forward pass that leaves parameters and buffers alone in eval mode",
            next_step="make the state an input and an output of forward",
        )


class AttributeWatch:
    """Tensors that a forward pass puts into plain attributes of the module, where no buffer would show them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = {(path, name): value for path, _, name, value in _attributes(module)}

    def changed(self) -> dict[str, Tensor]:
        """The tensors that lie in attributes now and did not when the watch began, by dotted path."""
        import torch

        return {
            f"{path}.{name}".lstrip("."): value
            for path, _, name, value in _attributes(self._module)
            if isinstance(value, torch.Tensor) and self._before.get((path, name)) is not value
        }

    def put_back(self) -> None:
        """Give every attribute the value it had when the watch began."""
        for path, part, name, value in [*_attributes(self._module)]:
            if (path, name) not in self._before:
                del part.__dict__[name]
            elif self._before[path, name] is not value:
                part.__dict__[name] = self._before[path, name]


def _attributes(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, object]]:
    for path, part in module.named_modules():
        for name, value in part.__dict__.items():
            yield path, part, name, value


def require_no_hidden_state(
    watch: AttributeWatch, run: Callable[[], object], run_on_others: Callable[[], object]
) -> None:
    """Nothing that depends on the inputs stays in an attribute: the graph would hold it for good.

    `watch` began before any forward pass, `run` is one on some inputs and `run_on_others` one on other values of the
    same shapes. Caches that follow from shapes alone are fine. Raises GateError naming the attribute.
    """
    run()
    kept = watch.changed()
    if not kept:
        return
    copies = {name: tensor.detach().clone() for name, tensor in kept.items()}
    watch.put_back()
    run_on_others()
    now = watch.changed()
    for name, tensor in copies.items():
        other = now.get(name)
        if other is not None and (other.shape != tensor.shape or not _same_bits(other, tensor)):
            raise GateError(
                f"the model keeps {name!r}, which depends on the inputs of an earlier call",
                expected="a forward pass that gives the same whatever came before",
                next_step="make the state an input and an output of forward",
            )


def _buffers(module: nn.Module) -> dict[str, tuple[nn.Module, str, Tensor]]:
    return {
        f"{path}.{name}" if path else name: (part, name, tensor)
        for path, part in module.named_modules()
        for name, tensor in part._buffers.items()
        if tensor is not None
    }


def _restore(
    module: nn.Module, buffers: dict[str, tuple[nn.Module, str, Tensor]], kept: dict[str, Tensor]
) -> list[str]:
    import torch

    changed = []
    with torch.no_grad():
        for path, (part, name, tensor) in buffers.items():
            if part._buffers.get(name) is not tensor:
                part._buffers[name] = tensor
                changed.append(f"buffer {path}")
            if not _same_bits(tensor, kept[path]):
                tensor.copy_(kept[path])
                changed.append(f"buffer {path}")
    return list(dict.fromkeys(changed))


def _same_bits(first: Tensor, second: Tensor) -> bool:
    import torch

    if first.numel() == 0:
        return True
    a, b = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (first, second))
    return torch.equal(a, b)
