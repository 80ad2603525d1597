"""What the onnxruntime backend reads from a config: which of two places for one CUDA option wins, and bad values."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest

from tritonstack_deploy.embedded.installation import find_installation


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The backend's module, beside the real utilities module of the wheel that the stub would give it."""
    installation = find_installation()
    monkeypatch.syspath_prepend(str(installation.python_backend))
    spec = spec_from_file_location("onnxruntime_backend", installation.onnxruntime_backend / "model.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "onnxruntime_backend", module)
    spec.loader.exec_module(module)
    return module


def config(parameters: dict[str, str], cuda: dict[str, str] | None = None) -> dict[str, Any]:
    accelerators = {"gpu_execution_accelerator": [{"name": "cuda", "parameters": cuda or {}}]}
    return {
        "max_batch_size": 8,
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
        "optimization": {"execution_accelerators": accelerators},
    }


@pytest.mark.parametrize("word", ["DEFAULT", "HEURISTIC", "EXHAUSTIVE"])
def test_the_accelerator_section_wins_over_the_older_parameter(backend: ModuleType, word: str) -> None:
    both = config({"cudnn_conv_algo_search": "1", "gpu_mem_limit": "5"}, {"cudnn_conv_algo_search": word})
    settings = backend.SessionSettings.from_config(both)
    assert dict(settings.cuda_options) == {"cudnn_conv_algo_search": word, "gpu_mem_limit": "5"}


def test_older_parameters_are_numbers(backend: ModuleType) -> None:
    settings = backend.SessionSettings.from_config(
        config({"arena_extend_strategy": "1", "do_copy_in_default_stream": "0"})
    )
    assert dict(settings.cuda_options) == {
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
    }
    with pytest.raises(ValueError, match="'cudnn_conv_algo_search' is '3'; expected a whole number from 0 to 2"):
        backend.SessionSettings.from_config(config({"cudnn_conv_algo_search": "3"}))
