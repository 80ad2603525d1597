"""A server whose behaviour is known exactly: a test double for the load tester's figures, in a process of its own.

It speaks enough of the KServe v2 gRPC protocol for `run_load`, sleeps as a named distribution says, stalls once, fails
one request in so many, and tells at its end how long each answer really took it. `MisbehavingProxy` breaks the bytes of
any server, a real Triton too: resets, garbage, GOAWAY, RST_STREAM, a trickle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

MODEL = "known"
SERVICE = "/inference.GRPCInferenceService/"
FAILURE = "refused on purpose"


class Behaviour:
    """How long answers take and which fail; all of it seeded."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.seen = 0
        self.first_s = 0.0
        self.took_s: list[float] = []

    def delay_s(self) -> float:
        """The next sleep: nothing, constant, exponential with mean `mean_s`, or mostly short and one in ten long."""
        mean_s = float(self.options.mean_s)
        match self.options.distribution:
            case "exponential":
                return self.random.expovariate(1 / mean_s)
            case "bimodal":
                return mean_s * (5.5 if self.random.random() < 0.1 else 0.5)
            case "constant":
                return mean_s
        return 0.0

    async def answer(self) -> bool:
        """Take as long as it takes; whether the answer is a good one."""
        now_s = time.monotonic()
        self.first_s = self.first_s or now_s
        self.seen += 1
        good = not self.options.fail_every or self.seen % self.options.fail_every != 0
        free_s = now_s
        if self.options.stall_s:
            start_s = self.first_s + self.options.stall_at_s
            if start_s <= now_s < start_s + self.options.stall_s:
                free_s = start_s + self.options.stall_s
        delay_s = self.delay_s()
        if free_s + delay_s > now_s:
            await asyncio.sleep(free_s + delay_s - now_s)
        if good:
            self.took_s.append(time.monotonic() - now_s)
        return good


async def serve(options: argparse.Namespace) -> None:
    import grpc
    from tritonclient.grpc import service_pb2 as pb

    behaviour = Behaviour(options)
    answer = pb.ModelInferResponse(model_name=MODEL, model_version="1")
    answer.outputs.add(name="y", datatype="FP32", shape=[1])
    answer.raw_output_contents.append(np.float32(1).tobytes())
    infer = answer.SerializeToString()
    metadata = pb.ModelMetadataResponse(name=MODEL, versions=["1"], platform="known")
    metadata.inputs.add(name="x", datatype="FP32", shape=[1])
    metadata.outputs.add(name="y", datatype="FP32", shape=[1])
    config = pb.ModelConfigResponse()
    config.config.name = MODEL
    statistics = pb.ModelStatisticsResponse()
    statistics.model_stats.add(name=MODEL, version="1")
    fixed = {
        "ServerLive": pb.ServerLiveResponse(live=True),
        "ServerReady": pb.ServerReadyResponse(ready=True),
        "ModelReady": pb.ModelReadyResponse(ready=True),
        "ServerMetadata": pb.ServerMetadataResponse(name="double", version="1"),
        "ModelMetadata": metadata,
        "ModelConfig": config,
        "RepositoryIndex": pb.RepositoryIndexResponse(),
    }

    async def infer_one(_request: bytes, context: Any) -> bytes:
        if not await behaviour.answer():
            await context.abort(grpc.StatusCode.INTERNAL, FAILURE)
        return infer

    async def count(_request: bytes, _context: Any) -> bytes:
        entry = statistics.model_stats[0]
        entry.inference_count = entry.execution_count = entry.inference_stats.success.count = len(behaviour.took_s)
        return statistics.SerializeToString()  # type: ignore[no-any-return]

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            name = details.method.removeprefix(SERVICE)
            if name == "ModelInfer":
                return grpc.unary_unary_rpc_method_handler(infer_one)
            if name == "ModelStatistics":
                return grpc.unary_unary_rpc_method_handler(count)
            if name not in fixed:
                return None
            body = fixed[name].SerializeToString()

            async def constant(_request: bytes, _context: Any) -> bytes:
                return body  # type: ignore[no-any-return]

            return grpc.unary_unary_rpc_method_handler(constant)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port(f"127.0.0.1:{options.port}")
    await server.start()
    print(port, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop(0)
    print(json.dumps(behaviour.took_s), flush=True)


class KnownServer:
    """The double as a child process. `took_s`, after the end: what each good answer really took, in seconds."""

    def __init__(self, **options: object) -> None:
        self._arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self.took_s: list[float] = []
        self.port = 0
        self._start()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def _start(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), *self._arguments, f"--port={self.port}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def restart(self) -> None:
        """Kill it with calls in flight and start it again at the same port."""
        self._process.kill()
        self._process.communicate()
        self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        out, _ = self._process.communicate(timeout=20)
        self.took_s = json.loads(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--distribution", choices=["none", "constant", "exponential", "bimodal"], default="none")
    parser.add_argument("--mean-s", type=float, default=0.0)
    parser.add_argument("--stall-at-s", type=float, default=0.0)
    parser.add_argument("--stall-s", type=float, default=0.0)
    parser.add_argument("--fail-every", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
