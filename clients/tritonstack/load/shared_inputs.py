"""The inputs of a load test in system shared memory: written once before the run, read by the server for each request.

All workers send the same few hundred bytes that name a place in one region; nothing writes to it while they do, so any
number of requests may read it at a time. Answers come over the wire, where they can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from tritonstack.client.model import ModelMetadata
from tritonstack.client.request import InferRequest, Span
from tritonstack.load.input_pool import InputPool
from tritonstack.load.request_encoding import RequestOptions, build
from tritonstack.shared_memory import SharedMemoryRegion
from tritonstack.tensor.conform import WireTensor

PREFIX = "tritonstack_load"
_ALIGN = 64


def _aligned(byte_size: int) -> int:
    return -(-byte_size // _ALIGN) * _ALIGN


def _tensors(request: InferRequest) -> list[WireTensor]:
    return [tensor for tensor in request.inputs if isinstance(tensor, WireTensor)]


class SharedInputs:
    """A region that holds every input of a pool. `region` is to be registered with the server, and closed at the end.

    Raises TensorError for an input that does not fit the model, SetupError where ``/dev/shm`` is missing or full.
    """

    def __init__(self, pool: InputPool, metadata: ModelMetadata) -> None:
        self._spans: list[dict[str, tuple[int, int]]] = []
        size = 0
        for index in range(len(pool.requests)):
            spans: dict[str, tuple[int, int]] = {}
            for tensor in _tensors(_request(pool, metadata, index)):
                spans[tensor.name] = size, len(tensor.data)
                size += _aligned(len(tensor.data))
            self._spans.append(spans)
        self.region = SharedMemoryRegion(max(size, 1), prefix=PREFIX)
        try:
            for index, spans in enumerate(self._spans):
                for tensor in _tensors(_request(pool, metadata, index)):
                    offset, length = spans[tensor.name]
                    self.region.view(offset, length)[:] = memoryview(tensor.data).cast("B")
        except BaseException:
            self.region.close()
            raise

    def of(self, index: int) -> Mapping[str, Span]:
        """Where the inputs of entry `index` lie, by name."""
        return {name: Span(self.region.name, offset, length) for name, (offset, length) in self._spans[index].items()}

    def close(self) -> None:
        """Take the region back from the server and remove its file."""
        self.region.close()


def _request(pool: InputPool, metadata: ModelMetadata, index: int) -> InferRequest:
    return build(metadata, pool.requests[index], RequestOptions(), cast=pool.cast)
