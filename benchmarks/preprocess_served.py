"""Images a second through the real server: the image backend against a python-backend model with Pillow, JPEG in.

One server at a time with one of the two models, as the first step of an ensemble would be: JPEGs come by gRPC, samples
stay where a next step takes them from (CUDA shared memory for GPU instances, system shared memory else), so no tensor
goes over the wire. Requests come from processes of their own. Both models are tried with several instance counts, the
best of each is compared. The processor time of clients and server says which of them was the limit.

    python benchmarks/preprocess_served.py [--kind gpu|cpu] [--processes N] [--in-flight N] [--pictures N]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from measurement import ROOT, save
from preprocess_cpu import MODEL, OURS, PILLOW, SIDE, SIZES, photo

INPUT, OUTPUT = "image_bytes", "preprocessed"
SAMPLE_BYTES = 3 * SIDE * SIDE * 4
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def write_model(repository: Path, name: str, kind: str, instances: int, largest: int) -> None:
    """`name`: ours or pillow. Batches up to `largest` pictures."""
    config = OURS if name == "ours" else PILLOW
    group = f"instance_group {{ count: {instances} kind: KIND_{kind.upper() if name == 'ours' else 'CPU'} }}"
    config = config.replace("max_batch_size: 8", f"max_batch_size: {largest}")
    config = config.replace("instance_group { count: 1 kind: KIND_CPU }", group)
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    if name == "pillow":
        (repository / name / "1" / "model.py").write_text(MODEL)


def image_backend() -> tuple[dict[str, Path], list[str]]:
    """The backends to serve with and the server's flags for them. On a machine that has not built them,
    TRITONSTACK_IMAGE_BACKEND names the library and TRITONSTACK_NVJPEG libnvjpeg."""
    from tritonstack_deploy.embedded import built_backends

    named, nvjpeg = os.environ.get("TRITONSTACK_IMAGE_BACKEND"), os.environ.get("TRITONSTACK_NVJPEG")
    backends = built_backends.built_backends({"image_preprocess": Path(named)} if named else None)
    found_by_itself = not nvjpeg or built_backends.backend_arguments(["image_preprocess"])
    return backends, [] if found_by_itself else [f"--backend-config=image_preprocess,nvjpeg_path={nvjpeg}"]


# --- one client process ------------------------------------------------------------------------------------------


class Room:
    """Where the samples of one process go: a region that the server knows, `slots` parts of `slot_bytes`."""

    def __init__(self, stack: ExitStack, stub: Any, on_gpu: bool, slots: int, slot_bytes: int) -> None:
        from tritonclient.grpc import service_pb2

        self.name = f"served_{os.getpid()}"
        self.slot_bytes = slot_bytes
        if on_gpu:
            sys.path.append(str(ROOT / "tests" / "backends"))
            from cuda_memory import CudaRegion, Driver

            region = stack.enter_context(CudaRegion(Driver(), slots * slot_bytes))
            stub.CudaSharedMemoryRegister(
                service_pb2.CudaSharedMemoryRegisterRequest(
                    name=self.name, raw_handle=region.handle, device_id=0, byte_size=slots * slot_bytes
                )
            )
            return
        path = Path("/dev/shm") / self.name  # noqa: S108 - where shared memory lives
        path.write_bytes(bytes(slots * slot_bytes))
        stack.callback(path.unlink)
        stub.SystemSharedMemoryRegister(
            service_pb2.SystemSharedMemoryRegisterRequest(
                name=self.name, key=f"/{self.name}", byte_size=slots * slot_bytes
            )
        )

    def request(self, model: str, pictures: list[bytes], slot: int) -> bytes:
        """A serialised request whose sample goes to `slot`."""
        from tritonclient.grpc import service_pb2

        message = service_pb2.ModelInferRequest(model_name=model)
        message.inputs.add(name=INPUT, datatype="BYTES", shape=[len(pictures), 1])
        message.raw_input_contents.append(b"".join(len(p).to_bytes(4, "little") + p for p in pictures))
        output = message.outputs.add(name=OUTPUT)
        output.parameters["shared_memory_region"].string_param = self.name
        output.parameters["shared_memory_byte_size"].int64_param = len(pictures) * SAMPLE_BYTES
        output.parameters["shared_memory_offset"].int64_param = slot * self.slot_bytes
        return bytes(message.SerializeToString())


def send_for(call: Any, requests: list[bytes], seconds: float) -> tuple[int, int]:
    """Keep every request in flight, again and again; requests answered and failed until the time is over."""
    end_s = time.monotonic() + seconds
    lock = threading.Lock()
    counts = [0, 0]
    left = threading.Semaphore(0)

    def send(index: int) -> None:
        call.future(requests[index], timeout=60).add_done_callback(lambda done: answered(index, done))

    def answered(index: int, done: Any) -> None:
        now_s = time.monotonic()
        with lock:
            if now_s < end_s:
                counts[1 if done.exception() else 0] += 1
        if now_s < end_s:
            send(index)
        else:
            left.release()

    for index in range(len(requests)):
        send(index)
    for _ in requests:
        left.acquire()
    return counts[0], counts[1]


def worker(setup: dict[str, Any]) -> int:
    """Print a line when ready, then run for each line of input (seconds) and print what came of it."""
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    files = [Path(path).read_bytes() for path in setup["files"]]
    pictures, in_flight = setup["pictures"], setup["in_flight"]
    with ExitStack() as stack:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        channel = stack.enter_context(grpc.insecure_channel(setup["address"], options=options))
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        room = Room(stack, stub, setup["on_gpu"], in_flight, pictures * SAMPLE_BYTES)
        requests = [
            room.request(setup["model"], [files[(slot + n) % len(files)] for n in range(pictures)], slot)
            for slot in range(in_flight)
        ]
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        call(requests[0], timeout=60)
        print("ready", flush=True)
        for line in sys.stdin:
            before = resource.getrusage(resource.RUSAGE_SELF)
            answered, failed = send_for(call, requests, float(line))
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(json.dumps({"images": answered * pictures, "failed": failed, "cpu_s": cpu_s}), flush=True)
    return 0


# --- the server's side -------------------------------------------------------------------------------------------


def group_cpu_s(leader: int) -> float:
    """Processor time of a process group, in seconds: the server and its Python models."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader:
            total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


class Clients:
    """The client processes, all at once."""

    def __init__(self, stack: ExitStack, setup: dict[str, Any], processes: int) -> None:
        self.running = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", json.dumps(setup)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        for process in self.running:
            stack.callback(self._end, process)
        for process in self.running:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a client process did not get ready; its words are above")

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(60)

    def run(self, seconds: float) -> list[dict[str, Any]]:
        for process in self.running:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self.running if process.stdout is not None]


def measure(name: str, instances: int, files: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """One server with one model; the median round."""
    from tritonstack_deploy.embedded import EmbeddedServer

    backends, arguments = image_backend()
    if options.kind == "gpu":
        arguments.append("--cuda-memory-pool-byte-size=0:1073741824")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write_model(Path(folder), name, options.kind, instances, max(64, options.pictures))
        server = stack.enter_context(
            EmbeddedServer(Path(folder), allow=("shared-memory",), backends=backends, extra_arguments=arguments)
        )
        assert server.pid
        setup = {
            "address": server.grpc_url.removeprefix("grpc://"), "model": name, "files": files,
            "on_gpu": options.kind == "gpu" and name == "ours", "pictures": options.pictures,
            "in_flight": options.in_flight,
        }  # fmt: skip
        clients = Clients(stack, setup, options.processes)
        clients.run(1.0)
        rounds = []
        for _ in range(options.rounds):
            before = group_cpu_s(server.pid)
            start_s = time.monotonic()
            parts = clients.run(options.seconds)
            took_s = time.monotonic() - start_s
            rounds.append(
                {
                    "images_per_s": sum(part["images"] for part in parts) / options.seconds,
                    "failed": sum(part["failed"] for part in parts),
                    "busiest_client": max(part["cpu_s"] for part in parts) / took_s,
                    "server_cores": (group_cpu_s(server.pid) - before) / took_s,
                }
            )
    row = {"instances": instances, **sorted(rounds, key=lambda found: found["images_per_s"])[len(rounds) // 2]}
    print(f"  {name}: {row}", file=sys.stderr, flush=True)
    return row


def doublings(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({most, *(2**n for n in range(most.bit_length()) if 2**n <= most)})


def limit_of(row: dict[str, Any], cores: int) -> str:
    """Which side had no processor time left: above 90 % of what it can use."""
    if row["busiest_client"] > 0.9:
        return "a client process"
    return "the processors, by the server" if row["server_cores"] > 0.9 * cores else "neither; the GPU or waiting"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", choices=("gpu", "cpu"), default="gpu", help="of our instances (gpu)")
    parser.add_argument("--processes", type=int, default=4, help="client processes (4)")
    parser.add_argument("--in-flight", type=int, default=32, help="requests in flight of each (32)")
    parser.add_argument("--pictures", type=int, default=1, help="in one request (1)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round (4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--instances", type=int, nargs="*", help="counts to try (1, 2, 4, … up to the cores)")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(json.loads(options.worker))
    cores = len(os.sched_getaffinity(0))
    counts = options.instances or doublings(cores)
    ours = [count for count in counts if count <= 4] or counts[:1] if options.kind == "gpu" else counts
    cells = {}
    with tempfile.TemporaryDirectory() as folder:
        for label in options.sizes:
            height, width = SIZES[label]
            files = []
            for seed in range(8):
                path = Path(folder) / f"{label}_{seed}.jpg"
                path.write_bytes(photo(height, width + seed % 2))
                files.append(str(path))
            print(f"{label}: {np.mean([Path(f).stat().st_size for f in files]):.0f} bytes", file=sys.stderr)
            rows = {
                "ours": [measure("ours", count, files, options) for count in ours],
                "pillow": [measure("pillow", count, files, options) for count in counts],
            }
            best = {name: max(found, key=lambda row: row["images_per_s"]) for name, found in rows.items()}
            cells[label] = {
                "best": best,
                "ratio": best["ours"]["images_per_s"] / best["pillow"]["images_per_s"],
                "limit": {name: limit_of(row, cores) for name, row in best.items()},
                "all": rows,
            }
            print(f"{label}: ratio {cells[label]['ratio']:.2f}", file=sys.stderr)
    save(
        f"preprocess_served_{options.kind}",
        {
            "processes": options.processes,
            "in_flight": options.in_flight,
            "pictures_per_request": options.pictures,
            "usable_cores": cores,
            "cells": cells,
        },
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
