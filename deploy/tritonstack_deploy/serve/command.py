"""`tritonstack serve`: check a repository, start the embedded tritonserver, wait, stop cleanly."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tritonstack.arguments import Parser, byte_size, require_output_file, some_path, whole_number
from tritonstack.errors import RepositoryError

if TYPE_CHECKING:
    from tritonstack_deploy.embedded import EmbeddedServer, ModelState
    from tritonstack_export.check import CheckReport
    from tritonstack_export.repository import ModelConfig

_APIS = ("model-repository", "shared-memory", "trace", "logging")
_EPILOG = """\
examples:
  tritonstack serve model_repository
  tritonstack serve model_repository --port-base 0 --json
  tritonstack serve model_repository --allow shared-memory --model efficientnet_lite0

Ctrl-C or SIGTERM stops it: requests in flight are finished first, a second Ctrl-C does not wait for them."""


def main(argv: list[str]) -> int:
    """Run the command until a signal or the server's end. Exit code 0 after a signal, 1 when the server died."""
    options = _parser().parse_args(argv)
    require_output_file("--log-file", options.log_file)
    from tritonstack_deploy.embedded.built_backends import built_backends
    from tritonstack_deploy.serve.selection import (
        named_backends,
        relevant_errors,
        select_models,
        without_missing_backends,
    )
    from tritonstack_export.check import check_repository
    from tritonstack_export.check.visible_gpus import visible_gpus

    repository = options.directory
    report = check_repository(repository, gpus=visible_gpus())
    _tell_findings(report, options.model)
    if errors := relevant_errors(report, options.model):
        raise RepositoryError(
            f"{len(errors)} error{'s' if len(errors) > 1 else ''} in {repository}",
            next_step="mend them, or serve only the sound models with --model",
        )
    backends = built_backends(named_backends(options.backend))
    models = without_missing_backends(select_models(report, options.model), backends, options.model)
    return _serve(options, repository, models, backends)


def _parser() -> Parser:
    parser = Parser(
        prog="tritonstack serve",
        description="Serve a model repository with the real tritonserver, on this machine.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("directory", type=some_path, metavar="DIR", help="the model repository")
    add("--model", metavar="NAME", action="append", default=[], help="serve only this model (repeatable)")
    add("--backend", metavar="NAME=PATH", action="append", default=[],
        help="library of a compiled backend (default: what `make backend` built; repeatable)")  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port-base", type=whole_number(0, 65533), default=8000, metavar="N",
        help="HTTP, gRPC and metrics on N, N+1, N+2; 0 takes free ports (default %(default)s)")  # fmt: skip
    add("--allow", metavar="API[,API]", action="append", default=[],
        help=f"open a control API: {', '.join(_APIS)}")  # fmt: skip
    add("--response-cache", type=byte_size, default=0, metavar="SIZE",
        help="size of the response cache, e.g. 256M, for models that enable it")  # fmt: skip
    add("--load-timeout", type=whole_number(1), default=300, metavar="S", help="for all models (default %(default)s)")
    add("--drain-timeout", type=whole_number(0), default=10, metavar="S",
        help="wait this long for requests in flight when stopping (default %(default)s)")  # fmt: skip
    add("--log-file", type=some_path, metavar="FILE", help="write the server's whole log there")
    add("--verbose", "-v", action="count", default=0, help="show the server's whole log; -vv: its verbose log too")
    add("--json", action="store_true", help="print endpoints and models as one JSON document once ready")
    return parser


def _serve(options: Any, repository: Path, models: Mapping[str, Path], backends: Mapping[str, Path]) -> int:
    from tritonstack_deploy.embedded import EmbeddedServer
    from tritonstack_deploy.serve.log_output import log_output
    from tritonstack_deploy.serve.selection import require_cuda_provider

    stop = threading.Event()
    signals = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        stop.set()
        if signals > 1:
            server.stop_now()

    with ExitStack() as stack:
        log = stack.enter_context(log_output(options.log_file, everything=options.verbose > 0))
        server = EmbeddedServer(
            repository,
            models=models,
            backends=backends,
            host=options.host,
            port_base=options.port_base,
            allow=_allowed(options.allow),
            load_timeout_s=options.load_timeout,
            exit_timeout_s=options.drain_timeout,
            response_cache_bytes=options.response_cache,
            verbose=max(0, options.verbose - 1),
            on_log=log,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)
        configs = _configs(models)
        _warn_if_open(options.host)
        _warn_if_uncached(configs, options.response_cache)
        print(f"starting tritonserver for {len(models)} model{'s' if len(models) != 1 else ''} …", file=sys.stderr)
        try:
            server.start(cancelled=stop.is_set)
            if stop.is_set():
                return 130
            require_cuda_provider(_explicit_gpu(configs), {n: p.providers for n, p in server.providers.items()})
            states = server.model_states()
            _tell_ready(server, states, as_json=options.json)
            while not stop.wait(0.2):
                server.check_alive()
            print("stopping; requests in flight are finished first …", file=sys.stderr)
        finally:
            server.stop()
        print("stopped", file=sys.stderr)
    return 0


def _allowed(words: list[str]) -> tuple[str, ...]:
    from tritonstack.errors import UsageError

    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    for name in names:
        if name not in _APIS:
            raise UsageError("argument --allow", given=repr(name), expected=f"one of {', '.join(_APIS)}")
    return tuple(dict.fromkeys(names))


def _warn_if_open(host: str) -> None:
    if host not in ("127.0.0.1", "::1", "localhost"):
        print(
            f"warning: {host} is reachable from other machines, and Triton has no authentication of its own",
            file=sys.stderr,
        )


def _configs(models: Mapping[str, Path]) -> dict[str, ModelConfig]:
    from tritonstack_export.repository.config_text import parse_config

    paths = {name: folder / "config.pbtxt" for name, folder in models.items()}
    return {name: parse_config(path.read_bytes(), path=path) for name, path in paths.items()}


def _explicit_gpu(configs: Mapping[str, ModelConfig]) -> list[str]:
    from tritonclient.grpc import model_config_pb2

    gpu = model_config_pb2.ModelInstanceGroup.KIND_GPU
    return [name for name, config in configs.items() if any(group.kind == gpu for group in config.instance_group)]


def _warn_if_uncached(configs: Mapping[str, ModelConfig], cache_bytes: int) -> None:
    # Triton itself says nothing: it computes every answer anew.
    wanting = [name for name, config in configs.items() if config.response_cache.enable]
    if wanting and not cache_bytes:
        print(
            f"warning: no response cache, although the config of {', '.join(wanting)} asks for one; "
            "start with --response-cache SIZE",
            file=sys.stderr,
        )


def _tell_findings(report: CheckReport, wanted: list[str]) -> None:
    from tritonstack_export.check.report_text import report_text

    about = replace(
        report,
        findings=tuple(f for f in report.findings if not wanted or f.model is None or f.model in wanted),
        models=tuple(m for m in report.models if not wanted or m.name in wanted),
    )
    if about.findings:
        print(report_text(about), file=sys.stderr)


def _tell_ready(server: EmbeddedServer, states: tuple[ModelState, ...], *, as_json: bool) -> None:
    from tritonstack.terminal import print_json, table

    providers = {name: list(found.providers) for name, found in server.providers.items()}
    if as_json:
        print_json(
            {
                "http": server.http_url,
                "grpc": server.grpc_url,
                "metrics": server.metrics_url,
                "pid": server.pid,
                "models": [
                    {"name": s.name, "version": s.version, "ready": s.ready, "providers": providers.get(s.name, [])}
                    for s in states
                ],
            }
        )
        sys.stdout.flush()
        return
    rows = [(s.name, s.version, "ready", ", ".join(providers.get(s.name, ["-"]))) for s in states]
    print(table(["model", "version", "state", "runs on"], rows))
    print(f"\nHTTP     {server.http_url}\ngRPC     {server.grpc_url}\nmetrics  {server.metrics_url}")
    first = states[0].name if states else "MODEL"
    print(f"\nTry: tritonstack infer {first} --url {server.grpc_url} …   (Ctrl-C stops the server)", flush=True)
