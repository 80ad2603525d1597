"""Rules on batching, queues, sequences, caching and answers that come in several parts."""

from __future__ import annotations

from typing import Any

from tritonstack_export.check.finding import FindingList
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.repository.config_text import ModelConfig

# A request that waits a second for company is a mistake far more often than a wish.
_LONG_DELAY_US = 1_000_000


def check_scheduling(entry: ModelEntry, config: ModelConfig) -> None:
    findings = entry.findings
    if config.HasField("dynamic_batching"):
        _check_dynamic_batching(config, findings)
    if config.HasField("sequence_batching"):
        _check_sequence_batching(config, findings)
    decoupled = config.model_transaction_policy.decoupled
    if config.response_cache.enable:
        for present, what in ((decoupled, "decoupled answers"), (config.HasField("sequence_batching"), "sequences")):
            if present:
                findings.error(
                    "response-cache",
                    f"response_cache does not work with {what}",
                    fix="remove response_cache",
                    at=("response_cache",),
                )
    if decoupled and entry.backend in ("onnxruntime", "tensorrt"):
        findings.error(
            "decoupled",
            f"the backend {entry.backend!r} answers each request once, the config asks for decoupled answers",
            fix="remove model_transaction_policy",
            at=("model_transaction_policy", "decoupled"),
        )


def _check_dynamic_batching(config: ModelConfig, findings: FindingList) -> None:
    batching = config.dynamic_batching
    at = "dynamic_batching"
    _check_preferred(batching, config.max_batch_size, (at,), findings)
    if config.max_batch_size == 0 and not batching.preferred_batch_size:
        findings.warning(
            "dynamic-batching",
            "dynamic_batching without effect: max_batch_size is 0, so requests are never joined",
            fix="remove dynamic_batching, or give the model a batch dimension and set max_batch_size",
            at=(at,),
        )
    _check_delay(batching, (at,), findings)
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 1 <= default <= levels:
        findings.error(
            "priority",
            f"default_priority_level is {default}, priority_levels is {levels}",
            fix=f"choose a default from 1 to {levels}",
            at=(at, "default_priority_level" if default else "priority_levels"),
        )
    if default and not levels:
        findings.warning(
            "priority",
            f"default_priority_level {default} has no effect without priority_levels",
            fix="set priority_levels too",
            at=(at, "default_priority_level"),
        )
    for level in sorted(batching.priority_queue_policy):
        if level == 0 or level > levels:
            findings.error(
                "priority",
                f"priority_queue_policy for level {level}, but priority_levels is {levels}",
                fix=f"use levels from 1 to {levels}" if levels else "set priority_levels",
                at=(at, "priority_queue_policy"),
            )
    if batching.preserve_ordering:
        _check_ordering(batching, levels, findings)


def _check_ordering(batching: Any, levels: int, findings: FindingList) -> None:
    at = ("dynamic_batching", "preserve_ordering")
    if levels > 1:
        findings.error(
            "priority",
            f"preserve_ordering cannot be kept with {levels} priority levels",
            fix="remove preserve_ordering or use one priority level",
            at=at,
        )
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    # Action 1 is DELAY: a request that waited too long goes to the end of the queue.
    if any(policy.default_timeout_microseconds and policy.timeout_action == 1 for policy in policies):
        findings.error(
            "queue-policy",
            "preserve_ordering cannot be kept with the timeout action DELAY",
            fix="use timeout_action: REJECT or remove preserve_ordering",
            at=at,
        )


def _check_preferred(batching: Any, max_batch_size: int, at: tuple[str | int, ...], findings: FindingList) -> None:
    for index, size in enumerate(batching.preferred_batch_size):
        place = (*at, "preferred_batch_size", index)
        if size <= 0:
            findings.error(
                "preferred-batch-size",
                f"preferred_batch_size holds {size}",
                fix="preferred sizes are 1 or more",
                at=place,
            )
        elif size > max_batch_size:
            reason = (
                "max_batch_size is 0: the model does not batch"
                if max_batch_size == 0
                else f"max_batch_size is {max_batch_size}"
            )
            findings.error(
                "preferred-batch-size",
                f"preferred_batch_size holds {size}, but {reason}",
                fix="remove dynamic_batching, or export the model with a batch dimension"
                if max_batch_size == 0
                else f"use sizes up to {max_batch_size}, or raise max_batch_size",
                at=place,
            )
    if len(set(batching.preferred_batch_size)) < len(batching.preferred_batch_size):
        findings.warning(
            "preferred-batch-size",
            "preferred_batch_size names a size twice",
            fix="name each size once",
            at=(*at, "preferred_batch_size"),
        )


def _check_delay(batching: Any, at: tuple[str | int, ...], findings: FindingList) -> None:
    delay_us = batching.max_queue_delay_microseconds
    if delay_us >= _LONG_DELAY_US:
        findings.warning(
            "queue-delay",
            f"a request may wait {delay_us / 1e6:g} s in the queue for others to join its batch",
            fix="max_queue_delay_microseconds is in microseconds: a few hundred to a few thousand are usual",
            at=(*at, "max_queue_delay_microseconds"),
        )


def _check_sequence_batching(config: ModelConfig, findings: FindingList) -> None:
    batching = config.sequence_batching
    at = ("sequence_batching",)
    if batching.HasField("oldest"):
        _check_preferred(batching.oldest, config.max_batch_size, (*at, "oldest"), findings)
        _check_delay(batching.oldest, (*at, "oldest"), findings)
        if batching.oldest.max_candidate_sequences <= 0:
            findings.error(
                "sequence",
                f"max_candidate_sequences is {batching.oldest.max_candidate_sequences}",
                fix="allow at least one sequence",
                at=(*at, "oldest"),
            )
    if batching.HasField("direct"):
        _check_delay(batching.direct, (*at, "direct"), findings)
        if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
            findings.error(
                "sequence",
                f"minimum_slot_utilization is {batching.direct.minimum_slot_utilization:g}",
                fix="use a fraction from 0 to 1",
                at=(*at, "direct", "minimum_slot_utilization"),
            )
    kinds: set[int] = set()
    for index, control_input in enumerate(batching.control_input):
        for control in control_input.control:
            if control.kind in kinds:
                findings.error(
                    "sequence",
                    f"control_input {control_input.name!r} repeats a control that another one carries",
                    fix="give each kind of control to one input",
                    at=(*at, "control_input", index),
                )
            kinds.add(control.kind)
    for index, state in enumerate(batching.state):
        if not state.input_name or not state.output_name:
            findings.error(
                "sequence",
                f"state {index + 1} lacks input_name or output_name",
                fix="name both tensors of the state",
                at=(*at, "state", index),
            )
