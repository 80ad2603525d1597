"""What to run: everything a load test is asked to do, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Literal

from tritonstack.client.endpoint import TlsOptions
from tritonstack.client.request import Parameter
from tritonstack.errors import UsageError
from tritonstack.load.arrival import Arrival
from tritonstack.load.conversation import Conversation
from tritonstack.load.inputs import InputSource, RandomInputs

if TYPE_CHECKING:
    from tritonstack.load.input_pool import Array

SharedMemory = Literal["none", "system", "cuda"]
TransportChoice = Literal["auto", "h2", "grpcio", "http"]
Validation = Literal["expected", "recorded", "off"]


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """A load test of one model: one run per entry of `arrivals`, each with its own warm-up.

    A run is measured for `duration_s` seconds or `requests` requests, whichever ends first (at least one is given).
    `shapes` gives the dims, without the batch, of inputs with open dimensions. `seed` draws the Poisson gaps (random
    inputs have their own). `timeout_s` bounds each request.
    `max_in_flight` bounds an open loop (None: 1024, less for large requests). An open loop is invalid when the
    generator itself was later than `max_lag_s` at the 99th percentile; a run has failed when more than the fraction
    `max_error_rate` of its requests did.

    `workers` None: as many processes as the load needs and the machine has cores for. `connections` of each worker
    (None: 1, of HTTP one per request in flight). `transport` auto: gRPC by own HTTP/2 framing where it needs no TLS,
    else by grpcio, and HTTP/1.1. `json_body`: HTTP without raw tensors. `pool`: how many distinct requests.

    `validate` expected: answers are compared where the inputs bring expected ones (`expected` by output name, sample
    by sample, or those of a JSONL file); recorded: with the answer that each request got once before the run; off: not
    at all. What differs by more than `atol + rtol * |expected|` is an error; `nan_equal`: NaN equals NaN.

    `tls`: certificates of an https:// or grpcs:// address; `headers` go with every request (gRPC: metadata).
    `conversation`: sequences, streams and requests that are taken back. `priority`, `queue_timeout_us` (how long a
    request may wait in the server's queue, where its policy allows that) and `parameters` go into every request.
    """

    model: str
    arrivals: Sequence[Arrival]
    url: str = "127.0.0.1"
    protocol: Literal["grpc", "http"] | None = None
    version: str = ""
    duration_s: float | None = 10.0
    requests: int | None = None
    warmup_s: float = 2.0
    batch: int = 1
    inputs: InputSource = field(default_factory=RandomInputs)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    timeout_s: float = 30.0
    max_in_flight: int | None = None
    max_lag_s: float = 0.010
    max_error_rate: float = 0.0
    workers: int | None = None
    connections: int | None = None
    transport: TransportChoice = "auto"
    shared_memory: SharedMemory = "none"
    json_body: bool = False
    pool: int | None = None
    validate: Validation = "expected"
    expected: Mapping[str, Array] = field(default_factory=dict)
    rtol: float = 0.0
    atol: float = 0.0
    nan_equal: bool = False
    tls: TlsOptions | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    conversation: Conversation = field(default_factory=Conversation)
    priority: int = 0
    queue_timeout_us: int | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.arrivals:
            raise UsageError("nothing to run", expected="at least one concurrency or rate")
        if self.duration_s is None and self.requests is None:
            raise UsageError("a run has no end", expected="a duration or a number of requests")
        _positive("duration", self.duration_s)
        _positive("requests", self.requests)
        _positive("timeout", self.timeout_s)
        _positive("max-in-flight", self.max_in_flight)
        _positive("max-lag", self.max_lag_s)
        _positive("workers", self.workers)
        _positive("connections", self.connections)
        _positive("pool", self.pool)
        if not (self.warmup_s >= 0 and isfinite(self.warmup_s)):
            raise UsageError("a warm-up cannot be negative", given=f"{self.warmup_s:g}", expected="seconds, 0 for none")
        if not 0 <= self.max_error_rate <= 1:
            raise UsageError(
                "a fraction of errors lies between 0 and 1", given=f"{self.max_error_rate:g}", expected="0 to 1"
            )
        if self.conversation and self.shared_memory != "none":
            raise UsageError("sequences, streams and cancelled requests carry their tensors", given=self.shared_memory)
        if self.conversation and (self.workers or 1) > 1:
            raise UsageError(
                "sequences, streams and cancelled requests are sent by one worker", given=str(self.workers)
            )
        if self.conversation.stream and self.validate == "recorded":
            raise UsageError("answers of a stream cannot be recorded", expected="expected answers, or none")
        if self.seed < 0:
            raise UsageError("a seed cannot be negative", given=str(self.seed), expected="0 or above")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not (value > 0 and isfinite(value)):
        raise UsageError(f"--{name} must be above 0", given=f"{value:g}")
