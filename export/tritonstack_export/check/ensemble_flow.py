"""The data flow of an ensemble: who writes each tensor, who reads it, and whether every step can run at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tritonstack_export.check.finding import printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.repository.config_text import ModelConfig


def check_flow(entry: ModelEntry, config: ModelConfig) -> None:
    """The order in which steps are written does not matter; what counts is that tensors can reach them."""
    findings = entry.findings
    steps = config.ensemble_scheduling.step
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    writers: defaultdict[str, list[int]] = defaultdict(list)
    readers: defaultdict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        for tensor in step.output_map.values():
            writers[tensor].append(index)
        for tensor in step.input_map.values():
            readers[tensor].append(index)
    for tensor, written_by in writers.items():
        at = ("ensemble_scheduling", "step", written_by[-1], "output_map")
        if tensor in inputs:
            findings.error(
                "ensemble-flow",
                f"step {written_by[0] + 1}: tensor {printable(tensor)!r} is an input of the ensemble and is written",
                fix="give the output another tensor name",
                at=at,
            )
        elif len(written_by) > 1:
            by = " and ".join(f"step {index + 1}" for index in dict.fromkeys(written_by))
            findings.error(
                "ensemble-flow",
                f"{by}: tensor {printable(tensor)!r} is written twice",
                fix="give each output its own tensor name",
                at=at,
            )
        elif tensor not in readers and tensor not in outputs:
            findings.error(
                "ensemble-unused",
                f"step {written_by[0] + 1}: tensor {printable(tensor)!r} is written but nothing reads it",
                fix="remove it from the output_map, or use it",
                at=at,
            )
    for tensor, read_by in readers.items():
        if tensor not in inputs and tensor not in writers:
            findings.error(
                "ensemble-flow",
                f"step {read_by[0] + 1}: tensor {printable(tensor)!r} is read by model "
                f"{printable(steps[read_by[0]].model_name)!r} but never produced",
                fix=did_you_mean(tensor, [*inputs, *writers]) or "map an output of a step to it",
                at=("ensemble_scheduling", "step", read_by[0], "input_map"),
            )
    for index, tensor in enumerate(config.output):
        if tensor.name in inputs:
            findings.warning(
                "ensemble-flow",
                f"output {printable(tensor.name)!r} is also an input: clients get back what they sent",
                fix="let a step write the output under its own name",
                at=("output", index),
            )
        elif tensor.name not in writers:
            findings.error(
                "ensemble-flow",
                f"output {printable(tensor.name)!r} is never written by any step",
                fix=did_you_mean(tensor.name, writers)
                or f"map an output of the last step to it (step {len(steps)} writes "
                f"{', '.join(repr(name) for name in steps[-1].output_map.values())})",
                at=("output", index),
            )
    for index, tensor in enumerate(config.input):
        if tensor.name not in readers and tensor.name not in outputs:
            findings.error(
                "ensemble-unused",
                f"input {printable(tensor.name)!r} is used by no step",
                fix="remove it, or map it to a step",
                at=("input", index),
            )
    _report_waiting(entry, config, set(writers))


def _report_waiting(entry: ModelEntry, config: ModelConfig, written: set[str]) -> None:
    """Report steps that wait for each other; tensors nobody writes are reported elsewhere and count as there."""
    steps = list(enumerate(config.ensemble_scheduling.step))
    ready = {tensor for _, step in steps for tensor in step.input_map.values() if tensor not in written}
    ready |= {tensor.name for tensor in config.input}
    progress = True
    while steps and progress:
        runnable = [(index, step) for index, step in steps if set(step.input_map.values()) <= ready]
        progress = bool(runnable)
        for index, step in runnable:
            ready |= set(step.output_map.values())
            steps.remove((index, step))
    if steps:
        waiting = ", ".join(f"step {index + 1} ({printable(step.model_name)})" for index, step in steps)
        entry.findings.error(
            "ensemble-cycle",
            f"no way to start {waiting}: they wait for each other's tensors",
            fix="break the circle: some step has to run on inputs of the ensemble",
            at=("ensemble_scheduling", "step", steps[0][0]),
        )


def check_decoupling(entry: ModelEntry, config: ModelConfig, models: Mapping[str, ModelEntry]) -> None:
    """A step cannot pair tensors that stem from different decoupled models, which answer at their own pace."""
    sources: dict[str, frozenset[int]] = {tensor.name: frozenset() for tensor in config.input}
    steps = list(enumerate(config.ensemble_scheduling.step))
    progress = True
    while progress:
        progress = False
        for index, step in list(steps):
            wanted = list(step.input_map.values())
            if not all(tensor in sources for tensor in wanted):
                continue
            steps.remove((index, step))
            progress = True
            origins = {sources[tensor] for tensor in wanted}
            if len(origins) > 1:
                entry.findings.error(
                    "ensemble-decoupled",
                    f"step {index + 1}: model {printable(step.model_name)!r} gets tensors from different decoupled "
                    "models, whose answers cannot be paired",
                    fix="take all its inputs from one decoupled model, or from none",
                    at=("ensemble_scheduling", "step", index),
                )
            model = models.get(step.model_name)
            decoupled = (
                model is not None and model.config is not None and model.config.model_transaction_policy.decoupled
            )
            origin = frozenset({index}) if decoupled else frozenset().union(*origins)
            for tensor in step.output_map.values():
                sources.setdefault(tensor, origin)
