"""Checkpoints: the digest first, tensors only, and every tensor in its place."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

Export = Callable[..., Any]
Write = Callable[..., Path]
SPEC = """
name: net
model: {{factory: 'MODELS:linear_module', checkpoint: {{path: {path}{more}}}}}
inputs: [{{name: x, dtype: float32, shape: [batch, 8]}}]
"""
STATE = {"fc.weight": torch.full((4, 8), 0.5), "fc.bias": torch.arange(4.0)}


@pytest.fixture
def export_with(export: Export, write_spec: Write, tmp_path: Path) -> Callable[..., Any]:
    """Export `linear_module` with the checkpoint of that name in the spec's folder."""

    def run(path: str, more: str = "", *flags: str) -> Any:
        return export(write_spec(SPEC.format(path=path, more=more)), *flags)

    return run


def right(outcome: Any) -> None:
    assert outcome.code == 0, outcome.err
    found = outcome.run_onnx("net", {"x": np.ones((2, 8), np.float32)})["output"]
    assert found.tolist() == [[4.0, 5.0, 6.0, 7.0]] * 2


def refused(outcome: Any, *needles: str, code: int = 1) -> None:
    assert outcome.code == code, outcome.out + outcome.err
    line = next(line for line in outcome.err.splitlines() if line.startswith("tritonstack export: error: "))
    for needle in needles:
        assert needle in line, line
    assert not outcome.repository.exists()


def save_file(path: Path) -> Path:
    from safetensors.torch import save_file as save

    save(STATE, path)
    return path


def test_state_dict(export_with: Any, tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "w.pt")
    right(export_with("w.pt"))


def test_safetensors(export_with: Any, tmp_path: Path) -> None:
    save_file(tmp_path / "w.safetensors")
    right(export_with("w.safetensors"))


def test_sub_dict(export_with: Any, tmp_path: Path) -> None:
    torch.save({"epoch": 3, "ema": {"model": STATE}}, tmp_path / "w.pt")
    right(export_with("w.pt", ", key: ema.model"))


def test_missing_sub_dict(export_with: Any, tmp_path: Path) -> None:
    torch.save({"epoch": 3, "ema": STATE}, tmp_path / "w.pt")
    refused(export_with("w.pt", ", key: model"), "no key 'model'", "epoch, ema")
    refused(export_with("w.pt"), "not a mapping of names to tensors", "model.checkpoint.key")


def test_the_digest_is_checked_before_loading(export_with: Any, tmp_path: Path) -> None:
    path = save_file(tmp_path / "w.safetensors")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    right(export_with("w.safetensors", f", sha256: {digest.upper()}"))


def test_wrong_digest(export_with: Any, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(b"would not even parse")
    refused(export_with("w.pt", f", sha256: '{'0' * 64}'"), "w.pt has another sha256", "0" * 64)
    refused(export_with("w.pt", ", sha256: abc"), "64 hexadecimal digits", code=2)


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_that_runs_code(export_with: Any, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"model": STATE, "extra": Trap(sprung)}, tmp_path / "w.pt")
    refused(export_with("w.pt", ", key: model"), "would run code", "--trust")
    assert not sprung.exists()
    right(export_with("w.pt", ", key: model", "--trust"))
    assert sprung.exists()


def test_a_whole_module(export_with: Any, tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("fc", nn.Linear(8, 4))
    model.load_state_dict(STATE)
    torch.save(model, tmp_path / "w.pt")
    refused(export_with("w.pt"), "would run code", "--trust")
    right(export_with("w.pt", "", "--trust"))


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 cut short", pickle.dumps(5)])
def test_files_that_are_no_checkpoints(export_with: Any, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refused(export_with(name), name)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_truncated_checkpoints(export_with: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    torch.save(STATE, path) if name.endswith("pt") else save_file(path)
    path.write_bytes(path.read_bytes()[:-40])
    refused(export_with(name), name)


def test_missing_and_unexpected_tensors(export_with: Any, tmp_path: Path) -> None:
    torch.save({"fc.weight": STATE["fc.weight"], "head.bias": STATE["fc.bias"]}, tmp_path / "w.pt")
    refused(export_with("w.pt"), "1 missing (fc.bias)", "1 unexpected (head.bias)", "strict")
    assert export_with("w.pt", ", strict: false").code == 0


def test_tensors_of_another_shape(export_with: Any, tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(5, 8), "fc.bias": STATE["fc.bias"]}, tmp_path / "w.pt")
    refused(export_with("w.pt"), "does not fit the model", "fc.weight", "[5, 8]")


def test_the_order_of_tensors_does_not_change_the_digest() -> None:
    from tritonstack_export.digest import weights_sha256

    turned = dict(reversed(STATE.items()))
    assert weights_sha256(STATE) == weights_sha256(turned)
    assert weights_sha256(STATE) != weights_sha256({**STATE, "fc.bias": torch.zeros(4)})
    assert weights_sha256({"a": torch.zeros(2, 3)}) != weights_sha256({"a": torch.zeros(3, 2)})
    assert (
        len(weights_sha256({"b": torch.zeros(3, dtype=torch.bfloat16), "e": torch.zeros(0), "s": torch.tensor(1)}))
        == 64
    )


def test_factories_that_go_wrong(export: Export, marked_line: Callable[[str], str]) -> None:
    refused(export("factory_fails"), marked_line("factory"), "ValueError: no weights today")
    refused(export("not_a_module"), "returned int", "torch.nn.Module")
    refused(export("linear_module"), "nothing says what the inputs")


def test_neighbours_of_the_factory_are_not_left_behind(export: Export, write_spec: Write, tmp_path: Path) -> None:
    """Two models with a file `layers.py` each get their own."""
    import sys

    path = list(sys.path)
    for number in (2, 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "layers.py").write_text(f"FACTOR = {number}\n")
        (folder / "model.py").write_text(
            "import torch\nfrom layers import FACTOR\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
            "        return x * FACTOR\n\n\ndef build():\n    return Net(), (torch.ones(2, 3),)\n"
        )
        outcome = export(
            write_spec(f"name: net{number}\nmodel: {{factory: 'model.py:build'}}\n", f"{number}/spec.yaml")
        )
        assert outcome.code == 0, outcome.err
        found = outcome.run_onnx(f"net{number}", {"x": np.ones((1, 3), np.float32)})["output"]
        assert found.tolist() == [[number] * 3]
    assert sys.path == path
    assert "layers" not in sys.modules
