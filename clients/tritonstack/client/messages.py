"""Protobuf messages of the KServe v2 and Triton APIs, read into dataclasses.

HTTP replies are parsed into the same messages first (Triton's JSON uses the protobuf field names), so both protocols
share one reader.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tritonstack.client.call import Buffer
from tritonstack.client.model import (
    BatchSizeStatistics,
    DurationTotal,
    EnsembleStep,
    ModelConfigView,
    ModelMetadata,
    ModelStatistics,
    RepositoryModel,
    ServerMetadata,
)
from tritonstack.errors import ServerError
from tritonstack.tensor.tensor_spec import TensorSpec

Message = Any  # tritonclient's generated modules carry no types


def parse_protobuf(message: Message, body: Buffer, what: str) -> Message:
    """`message` filled from serialised protobuf; ServerError when the bytes are not that message."""
    try:
        message.ParseFromString(bytes(body))
    except DecodeError as error:
        raise ServerError(f"the reply to {what} is malformed: {error}", code="MALFORMED_REPLY") from None
    return message


def parse_json(message: Message, body: Buffer, what: str, *, wrap: str | None = None) -> Message:
    """`message` filled from a JSON reply; `wrap` names the field that a bare JSON list belongs to."""
    try:
        value = json.loads(bytes(body))
        json_format.ParseDict({wrap: value} if wrap else value, message, ignore_unknown_fields=True)
    except (ValueError, json_format.ParseError) as error:
        raise ServerError(
            f"the reply to {what} is malformed: {error}",
            code="MALFORMED_REPLY",
            next_step="is this really Triton's HTTP port (8000 by default)?",
        ) from None
    return message


def read_server_metadata(message: Message) -> ServerMetadata:
    return ServerMetadata(message.name, message.version, tuple(message.extensions))


def read_repository_index(message: Message) -> tuple[RepositoryModel, ...]:
    return tuple(RepositoryModel(m.name, m.version, m.state, m.reason) for m in message.models)


def read_model_metadata(message: Message, config: ModelConfigView | None) -> ModelMetadata:
    """Metadata of a model, completed by its config; without one (a server that is not Triton) it counts as
    unbatched."""
    optional = config.optional_inputs if config else ()
    return ModelMetadata(
        name=message.name,
        versions=tuple(message.versions),
        platform=message.platform,
        inputs=tuple(TensorSpec(t.name, t.datatype, tuple(t.shape), t.name in optional) for t in message.inputs),
        outputs=tuple(TensorSpec(t.name, t.datatype, tuple(t.shape)) for t in message.outputs),
        max_batch_size=config.max_batch_size if config else 0,
    )


def read_model_config(message: Message) -> ModelConfigView:
    """The client's view of a ModelConfig message."""
    batching = message.WhichOneof("scheduling_choice") == "dynamic_batching"
    return ModelConfigView(
        name=message.name,
        platform=message.platform,
        backend=message.backend,
        max_batch_size=message.max_batch_size,
        parameters={key: value.string_value for key, value in sorted(message.parameters.items())},
        optional_inputs=tuple(tensor.name for tensor in message.input if tensor.optional),
        label_files={tensor.name: tensor.label_filename for tensor in message.output if tensor.label_filename},
        dynamic_batching=batching,
        preferred_batch_sizes=tuple(message.dynamic_batching.preferred_batch_size) if batching else (),
        max_queue_delay_us=message.dynamic_batching.max_queue_delay_microseconds if batching else 0,
        instance_count=sum(group.count * max(1, len(group.gpus)) for group in message.instance_group),
        response_cache=message.response_cache.enable,
        decoupled=message.model_transaction_policy.decoupled,
        steps=tuple(
            EnsembleStep(step.model_name, step.model_version, dict(step.input_map), dict(step.output_map))
            for step in message.ensemble_scheduling.step
        ),
    )


def read_statistics(message: Message) -> tuple[ModelStatistics, ...]:
    """Every counter of a ModelStatisticsResponse."""
    return tuple(
        ModelStatistics(
            name=model.name,
            version=model.version,
            last_inference_ms=model.last_inference,
            inference_count=model.inference_count,
            execution_count=model.execution_count,
            success=_duration(model.inference_stats.success),
            fail=_duration(model.inference_stats.fail),
            queue=_duration(model.inference_stats.queue),
            compute_input=_duration(model.inference_stats.compute_input),
            compute_infer=_duration(model.inference_stats.compute_infer),
            compute_output=_duration(model.inference_stats.compute_output),
            cache_hit=_duration(model.inference_stats.cache_hit),
            cache_miss=_duration(model.inference_stats.cache_miss),
            batches=tuple(
                BatchSizeStatistics(
                    batch.batch_size,
                    _duration(batch.compute_input),
                    _duration(batch.compute_infer),
                    _duration(batch.compute_output),
                )
                for batch in model.batch_stats
            ),
        )
        for model in message.model_stats
    )


def _duration(message: Message) -> DurationTotal:
    return DurationTotal(message.count, message.ns)


def new_message(name: str) -> Message:
    """An empty message of the inference service, by name."""
    return getattr(service_pb2, name)()
