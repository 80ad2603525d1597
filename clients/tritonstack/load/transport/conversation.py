"""Sequences, streams and requests that are taken back, as a transport: an event loop that runs inside of `poll`.

It does a few thousand requests a second, as grpcio's asyncio API does; what limits stateful and streaming models is
elsewhere. One worker runs it, since sequences are one plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritonstack.errors import DeadlineExceeded
from tritonstack.load.cancellation import CancelledOnPurpose, CancelPlan
from tritonstack.load.conversation import Conversation
from tritonstack.load.failure import CANCELLED, failure_of
from tritonstack.load.loop_sender import LoopFigures, LoopSender
from tritonstack.load.request_encoding import EncodedRequest, Encoding
from tritonstack.load.sequence import SequencePlan
from tritonstack.load.stream import StreamAnswer
from tritonstack.load.transport import Completion, TransportOptions

if TYPE_CHECKING:
    from tritonstack.load.request_pool import RequestPool

LATE_S = 1.0
"""A step of a conversation that outlives its deadline by this much is ended here; it may have waited for its turn."""
LONGEST_S = 86_400.0


class ConversationTransport:
    """See `Transport`. `send` picks the pool's entry only where there are no sequences: those have their own order."""

    def __init__(self, options: TransportOptions, pool: RequestPool) -> None:
        plan = options.conversation
        # Without one it is only another way to send: HTTP with TLS.
        self._late_s = LATE_S if plan is not None else 0.0
        plan = plan or Conversation().to_json(timeout_s=LONGEST_S)
        self._loop = asyncio.new_event_loop()
        self._done: list[Completion] = []
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        is_grpc = options.endpoint.protocol == "grpc"
        self._sender = LoopSender(
            options.endpoint,
            [_request(pool, index, is_grpc) for index in range(len(pool))],
            timeout_s=plan["timeout_s"],
            stream=plan["stream"],
            sequences=None if plan["sequences"] is None else SequencePlan.from_json(plan["sequences"]),
            cancel=None if plan["cancel"] is None else CancelPlan.from_json(plan["cancel"]),
            channels=options.connections,
            tls=options.tls,
            headers=options.headers,
        )
        self._loop.run_until_complete(self._sender.__aenter__())

    def send(self, token: int, entry: int, deadline_s: float) -> None:
        task = self._loop.create_task(self._exchange(token, entry, deadline_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def poll(self, until_s: float) -> Sequence[Completion]:
        self._loop.run_until_complete(self._wait(until_s))
        done, self._done = self._done, []
        self._arrived.clear()
        return done

    def figures(self) -> LoopFigures:
        """What was counted besides latencies since the transport was opened."""
        return self._sender.figures()

    def close(self) -> None:
        async def end() -> None:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._sender.__aexit__(None, None, None)

        self._loop.run_until_complete(end())
        self._loop.close()

    async def _wait(self, until_s: float) -> None:
        # One turn of the loop at least, so that what was queued goes out.
        await asyncio.sleep(0)
        left_s = until_s - time.monotonic()
        if not self._done and left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _exchange(self, token: int, entry: int, deadline_s: float) -> None:
        sent_s = time.monotonic()
        first_s = 0.0
        error: tuple[str, str] | None = None
        body: bytes = b""
        head_length: str | None = None
        try:
            async with asyncio.timeout(deadline_s + self._late_s):
                answer = await self._sender.send(entry)
        except CancelledOnPurpose as taken_back:
            error = CANCELLED, taken_back.summary
        except TimeoutError:
            error = failure_of(DeadlineExceeded(f"no answer within {deadline_s:g} s"))
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # what no request can have is raised again by failure_of
            error = failure_of(problem)
        else:
            if isinstance(answer, StreamAnswer):
                sent_s, body = answer.sent_s, answer.first
                first_s = answer.response_s[0] if answer.response_s else answer.done_s
            else:
                body = bytes(answer.body)  # type: ignore[attr-defined]
                head_length = answer.headers.get("inference-header-content-length")  # type: ignore[attr-defined]
        done_s = time.monotonic()
        self._done.append(Completion(token, sent_s, first_s or done_s, done_s, error, body, head_length))
        self._arrived.set()


def _request(pool: RequestPool, index: int, is_grpc: bool) -> EncodedRequest:
    _, body = pool.entry(index)
    headers = pool.headers(index)
    binary = any(name.lower() == "inference-header-content-length" for name, _ in headers)
    encoding: Encoding = "grpc" if is_grpc else "http" if binary else "json"
    return EncodedRequest(encoding, pool.target(index), bytes(body), headers)
