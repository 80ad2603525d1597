"""One worker process of a load test: ``python -m tritonstack.load.worker --control FD --pool FD``.

It is started by the session (`fleet.py`), which hands it one end of a socket and the pool of encoded requests. It runs
one level at a time, tells ticks while it does and the whole result at the end; it ends when the session hangs up.
"""

from __future__ import annotations

import argparse
import base64
import mmap
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from tritonstack.client.endpoint import Protocol
from tritonstack.errors import TritonstackError
from tritonstack.load.control import Message, WorkerEnd
from tritonstack.load.expected import AnswerCheck, decoded_reply, reply_of
from tritonstack.load.loop_sender import LoopFigures
from tritonstack.load.measurement import WorkerResult
from tritonstack.load.request_log import Tick
from tritonstack.load.request_pool import RequestPool
from tritonstack.load.schedule import Schedule, timetable_from_json
from tritonstack.load.transport import Completion, Transport, TransportOptions, open_transport
from tritonstack.load.worker_loop import LoopOptions, WorkerLoop


class Worker:
    """Runs the levels that it is asked for."""

    def __init__(self, control: WorkerEnd, pool: RequestPool) -> None:
        self._control = control
        self._pool = pool
        self._transport: Transport | None = None
        self._options: TransportOptions | None = None
        self._protocol: Protocol = "grpc"
        self._checks: list[AnswerCheck | None] = []
        self._versions: set[str] = set()

    def serve(self) -> None:
        """Answer the session until it hangs up."""
        try:
            while (message := self._control.wait()) is not None:
                if message["do"] == "prepare":
                    self._prepare(message)
                elif message["do"] == "run":
                    self._run(message)
        except TritonstackError as error:
            self._control.tell({"say": "error", **error.as_dict()})
            self._control.flush()
        finally:
            if self._transport is not None:
                self._transport.close()

    def _prepare(self, message: Message) -> None:
        """Open the transport and decode what is expected."""
        options = TransportOptions.from_json(message["transport"])
        if self._transport is None or options != self._options:
            if self._transport is not None:
                self._transport.close()
            self._transport, self._options = open_transport(options, self._pool), options
            self._protocol = options.endpoint.protocol
        # What answers are decoded with is imported here, since an import in the run would hold the load up.
        with suppress(TritonstackError):
            decoded_reply(reply_of(b"", None), self._protocol)
        if message["validate"] and not self._checks:
            self._checks = [self._check(index) for index in range(len(self._pool))]
        self._control.tell({"say": "prepared"})

    def _check(self, index: int) -> AnswerCheck | None:
        expected = self._pool.expected(index)
        return None if expected is None else AnswerCheck(expected, self._protocol)

    def _run(self, message: Message) -> None:
        if self._transport is None:
            return
        self._versions = set()
        loop = WorkerLoop(
            self._transport,
            LoopOptions(**message["loop"]),
            pool_size=len(self._pool),
            schedule=None if message["schedule"] is None else schedule_from(message["schedule"]),
            checks=self._checks if message["validate"] else (),
            tell=self._tell,
            stopped=self._stopped,
            look=self._look,
        )
        loop.run()
        result = WorkerResult(
            host=socket.gethostname(),
            pid=os.getpid(),
            tally=loop.tally,
            interrupted=loop.interrupted,
            abandoned=loop.abandoned,
            cpu_s=loop.cpu_s,
            thread_s=loop.thread_s,
            gc_collections=loop.gc_collections,
            rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            versions=tuple(sorted(self._versions)),
            figures=self._figures(),
        )
        if loop.abandoned and self._transport is not None:
            # Answers of requests that were given up must not be taken for those of the next level.
            self._transport.close()
            self._transport = self._options = None
        self._control.tell({"say": "result", "result": result.to_json()})
        self._control.flush()

    def _figures(self) -> LoopFigures | None:
        """What a conversation counted in this run, which is then over: the next one has sequences of its own."""
        if self._options is None or self._options.conversation is None:
            return None
        from tritonstack.load.transport.conversation import ConversationTransport

        if not isinstance(self._transport, ConversationTransport):
            return None
        # Open sequences are ended first, so that they count as what they are.
        self._transport.close()
        figures = self._transport.figures()
        self._transport = self._options = None
        return figures

    def _tell(self, tick: Tick) -> None:
        self._control.tell(
            {
                "say": "tick",
                "number": tick.number,
                "sent": tick.sent,
                "completed": tick.completed,
                "errors": tick.errors,
                "in_flight": tick.in_flight,
                "latencies_us": base64.b64encode(tick.latencies_us.astype("<f4").tobytes()).decode("ascii"),
            }
        )

    def _stopped(self) -> bool:
        message = self._control.take()
        return self._control.gone or (message is not None and message["do"] == "stop")

    def _look(self, completion: Completion) -> None:
        """Which version of the model gave an answer."""
        # A malformed answer is the validation's business.
        with suppress(TritonstackError):
            reply = reply_of(completion.body, completion.head_length)
            self._versions.add(decoded_reply(reply, self._protocol).model_version)


def schedule_from(message: Message) -> Schedule:
    """The timetable of a message of the session, which names the memory file of a trace's arrivals."""
    if "fd" not in message:
        return timetable_from_json(message)
    from tritonstack.load.trace import trace_from_json

    with mmap.mmap(message["fd"], 0, mmap.MAP_SHARED, mmap.PROT_READ) as columns:
        return trace_from_json(message, columns[:])


def main(argv: Sequence[str]) -> int:
    """Run one worker; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tritonstack.load.worker", description=__doc__)
    parser.add_argument("--control", type=int, required=True, metavar="FD", help="socket to the session")
    parser.add_argument("--pool", type=int, required=True, metavar="FD", help="memory file of the encoded requests")
    options = parser.parse_args(argv)
    # The session alone decides when a run ends; a Ctrl-C in the terminal reaches it too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=options.control) as end:
        control = WorkerEnd(end)
        pool = RequestPool.from_fd(options.pool)
        Worker(control, pool).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
