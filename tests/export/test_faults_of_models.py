"""Faults that export to a valid file without a word: each has to stop the export, and be named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Export = Callable[..., Any]


def refused(outcome: Any, *needles: str, code: int = 1) -> None:
    assert outcome.code == code, outcome.out + outcome.err
    message = [line for line in outcome.err.splitlines() if line.startswith("tritonstack export: error: ")]
    assert len(message) == 1, outcome.err
    for needle in needles:
        assert needle in message[0]
    assert not outcome.repository.exists()


def test_batch_folded_into_a_reshape(export: Export) -> None:
    refused(export("folded_reshape"), "'output' does not follow the batch dimension", "[2, 4] at batch 1")


def test_batch_folded_into_a_reshape_seen_from_the_graph(export: Export) -> None:
    """The same fault where every batch the model is asked for divides: only the exporter's guard finds it."""
    refused(export("folded_reshape", "--min-batch", "2", "--opt-batch", "2", "--max-batch", "2"), "batch")


@pytest.mark.parametrize(("model", "word"), [("branch_on_values", "branch"), ("loop_on_values", "loop")])
def test_control_flow_on_values(export: Export, marked_line: Callable[[str], str], model: str, word: str) -> None:
    refused(export(model), marked_line(word), "torch.cond", "torch.where")


def test_where_is_the_way_out(export: Export) -> None:
    import numpy as np

    outcome = export("where", "--name", "where")
    assert outcome.code == 0, outcome.err
    found = outcome.run_onnx("where", {"x": np.array([[1, 1, 1, 1], [-1, -1, -1, -1]], np.float32)})["output"]
    assert found.tolist() == [[2, 2, 2, 2], [1, 1, 1, 1]]


def test_branch_on_the_batch_size(export: Export) -> None:
    refused(export("branch_on_batch"), "batch cannot be dynamic")


def test_batch_size_written_as_a_number(export: Export) -> None:
    refused(export("fixed_view"))


@pytest.mark.parametrize(
    ("model", "word", "what"), [("functional_dropout", "dropout", "dropout"), ("noise", "noise", "randn_like")]
)
def test_randomness_in_eval_mode(
    export: Export, marked_line: Callable[[str], str], model: str, word: str, what: str
) -> None:
    refused(export(model), "not deterministic in eval mode", f"({what} at {marked_line(word)})")


def test_squeeze_that_eats_the_batch(export: Export, marked_line: Callable[[str], str]) -> None:
    refused(export("squeeze"), "output rank changes with the batch", f"(squeeze without dim, {marked_line('squeeze')})")


@pytest.mark.parametrize(
    "model", ["batch_mean", "batch_norm_without_statistics", "gram", "sorted_over_the_batch", "flipped_batch"]
)
def test_samples_that_see_each_other(export: Export, model: str) -> None:
    refused(export(model), "depends on the others in its batch")


def test_samples_that_see_each_other_with_a_larger_minimum(export: Export) -> None:
    """With min 2 a sample cannot run alone, so it runs among other companions."""
    refused(export("batch_mean", "--min-batch", "2"), "depends on the others in its batch")


def test_state_kept_between_calls(export: Export) -> None:
    refused(export("counter"), "changes its own state", "buffer calls")


def test_state_kept_in_a_plain_attribute(export: Export) -> None:
    """Parity cannot see it: PyTorch and the graph both go on with what the first random input left."""
    refused(export("remembers_the_first"), "the model keeps '_kept'", "inputs of an earlier call")


def test_a_table_that_follows_from_the_shape_may_be_kept(export: Export) -> None:
    import numpy as np

    outcome = export("remembers_a_table", "--name", "table")
    assert outcome.code == 0, outcome.err
    assert outcome.run_onnx("table", {"x": np.full((1, 4), 3, np.float32)})["output"].tolist() == [[3, 2, 1, 0]]


def test_forward_without_a_result(export: Export) -> None:
    refused(export("nothing"), "returns no tensor")


def test_steps_of_a_recurrent_layer(export: Export, write_spec: Callable[..., Path]) -> None:
    spec = write_spec(
        "name: net\nmodel: {factory: MODELS:lstm}\ninputs: [{name: x, dtype: float32, shape: [batch, steps, 8]}]\n"
        "dimensions: {steps: {min: 1, opt: 5, max: 9}}\n"
    )
    refused(export(spec), "dimension steps cannot be dynamic", "recurrent layer (LSTM)", "fixed number")


def test_not_a_number(export: Export) -> None:
    refused(export("not_a_number"), "'output' holds NaN", "range")


def test_scalar_output_of_a_batched_model(export: Export) -> None:
    refused(export("scalar_output"), "'output_1' does not follow the batch dimension")


def test_forward_that_fails(export: Export, marked_line: Callable[[str], str]) -> None:
    refused(export("fails"), f"forward fails at {marked_line('fails')}", "given x [5, 3]")


def test_output_that_is_no_tensor(export: Export) -> None:
    refused(export("number_output"), "returns int as 'output_1'")


def test_output_dtype_without_a_numpy_twin(export: Export) -> None:
    refused(export("bfloat"), "'output' is bfloat16", ".float()")


def test_inputs_without_a_common_batch(export: Export) -> None:
    refused(export("zero_size"), "do not share a batch dimension", "feats [2, 3], boxes [5, 4]", "batch: false")


def test_operator_without_a_translation(export: Export, tmp_path: Path) -> None:
    refused(export("no_translation", "--keep-work", str(tmp_path / "work")), "bessel_j0", "--keep-work")
    assert (tmp_path / "work" / "exporter.log").is_file()


@pytest.mark.parametrize("model", ["time_first", "nonzero"])
def test_outputs_whose_first_dimension_is_something_else(export: Export, model: str) -> None:
    refused(export(model), "'output' does not follow the batch dimension")


def test_torchscript(export: Export) -> None:
    refused(export("script"), "TorchScript", "plain torch.nn.Module")


def test_code_that_ends_the_program(export: Export, marked_line: Callable[[str], str]) -> None:
    refused(export("leaves"), "sys.exit(2)", marked_line("leaves"), "__main__")
