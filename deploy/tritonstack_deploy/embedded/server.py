"""One embedded tritonserver process: started, waited for, watched, stopped.

The process runs in its own session, so a Ctrl-C in the terminal reaches only us; it is told to end when its owner
dies, and what it leaves in /dev/shm is removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tritonstack.errors import InternalError, RepositoryError, ServerUnavailable, SetupError
from tritonstack_deploy.embedded.api import ModelState, ServerApi, model_states
from tritonstack_deploy.embedded.built_backends import (
    MissingBackend,
    backend_arguments,
    built_backends,
    missing_backends,
)
from tritonstack_deploy.embedded.installation import Installation, find_installation
from tritonstack_deploy.embedded.leftovers import new_prefix, remove_orphans, remove_regions, run_folder
from tritonstack_deploy.embedded.log_lines import LogLine, ProvidersInUse, parse_line, parse_providers, short_reason
from tritonstack_deploy.embedded.ports import Ports
from tritonstack_deploy.embedded.staging import stage_backends, stage_interpreter, stage_models
from tritonstack_export.repository.layout import is_shell_safe, iterate_entries

# APIs that change the server or reach beyond inference; closed unless asked for.
CONTROL_APIS = ("shared-memory", "trace", "logging")
CONTROL_HEADER = "tritonstack-control"
# Runs before tritonserver in its process: ask the kernel to end it with its owner, then become it.
_LAUNCHER = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15)\n"  # PR_SET_PDEATHSIG, SIGTERM
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class EmbeddedServer:
    """The real tritonserver on this machine, serving one repository.

    `models` maps model names to their folders; left out, every folder of `repository` that holds a `config.pbtxt` is
    served, but for those whose backend has yet to be built (`left_out`). `backends` maps names of compiled backends to
    their libraries; left out, those that were built or installed here. `allow` opens control APIs by name (see
    CONTROL_APIS; "model-repository" also lets clients load and unload models). `on_log` gets each line of the server's
    log, from a reader thread; once it raised OSError or ValueError (kept in `log_failure`) it is not called again.

    Use as a context manager, or call `start` and `stop`. `start` must run in a thread that outlives the server.
    """

    def __init__(
        self,
        repository: Path,
        *,
        models: Mapping[str, Path] | None = None,
        host: str = "127.0.0.1",
        port_base: int = 0,
        allow: Sequence[str] = (),
        load_timeout_s: float = 300.0,
        exit_timeout_s: int = 10,
        response_cache_bytes: int = 0,
        verbose: int = 0,
        extra_arguments: Sequence[str] = (),
        backends: Mapping[str, Path] | None = None,
        on_log: Callable[[LogLine], None] | None = None,
    ) -> None:
        self.repository = repository
        self.host = host
        self._backends = dict(backends) if backends is not None else built_backends()
        self._models = dict(models) if models is not None else _model_folders(repository)
        self.left_out: list[MissingBackend] = []
        if models is None:
            self.left_out = missing_backends(self._models, self._backends)
            for waiting in self.left_out:
                del self._models[waiting.model]
        self._port_base = port_base
        self._allow = tuple(allow)
        self._load_timeout_s = load_timeout_s
        self._exit_timeout_s = exit_timeout_s
        self._cache_bytes = response_cache_bytes
        self._verbose = verbose
        self._extra = tuple(extra_arguments)
        self._on_log = on_log
        self._process: subprocess.Popen[str] | None = None
        self._stopping: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._opened = threading.Event()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._prefix = ""
        self._secret = secrets.token_urlsafe(24)
        self._tail: deque[LogLine] = deque(maxlen=200)
        self._ports: Ports | None = None
        self.providers: dict[str, ProvidersInUse] = {}
        self.log_failure: Exception | None = None

    # --- addresses -------------------------------------------------------------------------------------------

    @property
    def ports(self) -> Ports:
        """Ports in use; raises InternalError before `start`."""
        if self._ports is None:
            raise InternalError("the server has no ports before it is started")
        return self._ports

    @property
    def _reach(self) -> str:
        """The host under which this machine reaches the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound

    def _url(self, scheme: str, port: int) -> str:
        host = f"[{self._reach}]" if ":" in self._reach else self._reach
        return f"{scheme}://{host}:{port}"

    @property
    def http_url(self) -> str:
        return self._url("http", self.ports.http)

    @property
    def grpc_url(self) -> str:
        return self._url("grpc", self.ports.grpc)

    @property
    def metrics_url(self) -> str:
        return self._url("http", self.ports.metrics) + "/metrics"

    @property
    def pid(self) -> int | None:
        """Process id of tritonserver, or None before `start`."""
        return self._process.pid if self._process else None

    # --- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *, cancelled: Callable[[], bool] = lambda: False) -> Self:
        """Start the server and wait until its models are loaded or have failed, or until `cancelled` says stop.

        Raises SetupError (missing parts, port taken), RepositoryError (a model failed to load: the model's own
        reason) or ServerUnavailable (died, or not up within `load_timeout_s`). Nothing is left running then.
        """
        try:
            # A free port can be taken by somebody else between our look and the server's bind: try again.
            attempts = 3 if self._port_base == 0 else 1
            for attempt in range(attempts):
                self._launch()
                try:
                    self._wait_until_up(cancelled)
                    break
                except SetupError:
                    if attempt + 1 == attempts:
                        raise
                    self.stop()
            if cancelled():
                return self
            failed = [state for state in self.model_states() if not state.ready]
            if failed:
                raise RepositoryError(
                    "; ".join(f"model {s.name!r} version {s.version} did not load: {s.reason}" for s in failed),
                    next_step="mend it, or leave it out with --model",
                )
        except BaseException:
            self.stop()
            raise
        return self

    def _launch(self) -> None:
        for name in self._models:
            if not is_shell_safe(name):
                raise RepositoryError(
                    f"the model name {name!r} has characters that Triton's python backend would pass to a shell",
                    next_step="rename the folder: letters, digits, '_', '-' and '.'",
                )
        installation = find_installation()
        remove_orphans()
        self._ports = Ports.from_base(self.host, self._port_base)
        self._prefix = new_prefix()
        self._folder = run_folder(self._prefix)
        root = Path(self._folder.name)
        backends = stage_backends(installation, root / "backends", libraries=self._backends)
        explicit = "model-repository" in self._allow
        models = root / "models"
        if explicit:
            models.symlink_to(self.repository.resolve(), target_is_directory=True)
        else:
            stage_models(self._models, models)
        self._tail.clear()  # the last words of an attempt before this one explain nothing
        arguments = [
            str(installation.server),
            f"--model-repository={models}",
            f"--backend-directory={backends}",
            f"--cache-directory={installation.caches}",
            f"--backend-config=python,shm-region-prefix-name={self._prefix}",
            "--disable-auto-complete-config",
            "--exit-on-error=false",
            f"--exit-timeout-secs={self._exit_timeout_s}",
            f"--http-address={self.host}",
            f"--http-port={self.ports.http}",
            f"--grpc-address={self.host}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-address={self.host}",
            f"--metrics-port={self.ports.metrics}",
            f"--log-verbose={self._verbose}",
        ]
        if explicit:
            arguments += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in self._models)]
        closed = ",".join(api for api in CONTROL_APIS if api not in self._allow)
        if closed:
            arguments += [
                f"--http-restricted-api={closed}:{CONTROL_HEADER}={self._secret}",
                f"--grpc-restricted-protocol={closed}:{CONTROL_HEADER}={self._secret}",
            ]
        if self._cache_bytes:
            arguments.append(f"--cache-config=local,size={self._cache_bytes}")
        arguments += [*backend_arguments(self._backends), *self._extra]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(installation, stage_interpreter(installation, root / "python")),
            start_new_session=True,
        )
        self._opened.clear()
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        for raw in process.stdout or ():
            line = parse_line(raw.rstrip("\n"))
            self._tail.append(line)
            if line.says_ports_are_open:
                self._opened.set()
            if found := parse_providers(line):
                self.providers[found.model] = found
            if self._on_log and self.log_failure is None:
                try:
                    self._on_log(line)
                except (OSError, ValueError) as error:
                    # A closed terminal, a full disk. Reading goes on: Triton would block on a full pipe.
                    self.log_failure = error

    def _wait_until_up(self, cancelled: Callable[[], bool]) -> None:
        """Wait for the HTTP and gRPC endpoints, which Triton opens once every model has been tried."""
        deadline = time.monotonic() + self._load_timeout_s
        while time.monotonic() < deadline:
            if cancelled():
                return
            if self.exit_code() is not None:
                raise self._death("before it was ready")
            try:
                # Its own word, said when the last port is open, comes first: on ports taken at the same moment, it
                # is another server that answers.
                if self._opened.is_set():
                    if self._api().is_live():
                        return
                    raise self._failed_start()
            except OSError:
                pass
            time.sleep(0.05)
        raise ServerUnavailable(
            f"the models were not loaded within {self._load_timeout_s:.0f} s",
            given=f"last words of the server: {self._last_words()}",
            next_step="raise --load-timeout",
        )

    def _failed_start(self) -> SetupError:
        """The error for a server that runs on although it could not set itself up (`--exit-on-error=false`)."""
        words = self._last_words()
        advice = "choose a smaller --response-cache" if self._cache_bytes and "cache" in words.lower() else None
        return SetupError("tritonserver could not set itself up", given=f"last words: {words}", next_step=advice)

    def stop(self) -> None:
        """Stop the server: SIGTERM, in-flight requests get `exit_timeout_s` to finish, then SIGKILL. Idempotent."""
        process, self._process = self._process, None
        self._stopping = process
        if process is not None:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(self._exit_timeout_s + 10)
                except subprocess.TimeoutExpired:
                    process.kill()
            _kill_group(process.pid)
            process.wait()
            if self._reader is not None:
                self._reader.join(timeout=5)
            if process.stdout is not None and not (self._reader and self._reader.is_alive()):
                process.stdout.close()
        if self._prefix:
            remove_regions(self._prefix)
            self._prefix = ""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def stop_now(self) -> None:
        """Kill the server without waiting for requests in flight; `stop` then cleans up. Safe in a signal handler."""
        process = self._stopping or self._process
        if process is not None and process.poll() is None:
            process.kill()

    def exit_code(self) -> int | None:
        """Exit code of a server that ended by itself (negative: killed by that signal), None while it runs."""
        return self._process.poll() if self._process else None

    def check_alive(self) -> None:
        """Raise ServerUnavailable, saying how and with which last words, when the server died."""
        if self.exit_code() is not None:
            raise self._death("while serving")

    def _death(self, when: str) -> SetupError | ServerUnavailable:
        code = self.exit_code() or 0
        if self._reader is not None:
            self._reader.join(timeout=2)
        words = self._last_words()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if "already in use" in words or ("failed to start" in words.lower() and "port" in words.lower()):
            return SetupError(
                f"tritonserver could not open its ports ({words})", next_step="choose another --port-base"
            )
        hint = None
        if code == -signal.SIGSEGV:
            hint = "Triton 2.51 can crash when a model's warm-up fails or clients disconnect with calls in flight"
        elif code == -signal.SIGKILL:
            hint = "the kernel may have killed it for memory: see the system log"
        return ServerUnavailable(f"tritonserver ended {when} with {how}", given=f"last words: {words}", next_step=hint)

    def _last_words(self) -> str:
        said = [line for line in self._tail if line.message.strip() and not line.is_past_the_log]
        errors = [line for line in said if line.level in ("error", "fatal", "output")]
        chosen = errors[-3:] or said[-3:]
        return " | ".join(short_reason(line.message)[:300] for line in chosen) or "none"

    # --- models ----------------------------------------------------------------------------------------------

    def model_states(self) -> tuple[ModelState, ...]:
        """Every model this server was asked to serve, by name and version, with the reason where one failed."""
        return model_states(self._api(), list(self._models), list(self._tail))

    def _api(self) -> ServerApi:
        return ServerApi(self._reach, self.ports.http, {CONTROL_HEADER: self._secret})


def _model_folders(repository: Path) -> dict[str, Path]:
    if not repository.is_dir():
        raise RepositoryError("the model repository is not a folder", given=str(repository))
    return {entry.name: entry.folder for entry in iterate_entries(repository)}


def _environment(installation: Installation, interpreter: Path) -> dict[str, str]:
    environment = dict(os.environ)
    old = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, installation.library_path), *([old] if old else [])])
    # The stub asks the first python3 on PATH for its site-packages; PYTHONHOME would overrule that.
    environment["PATH"] = os.pathsep.join([str(interpreter), environment.get("PATH", os.defpath)])
    environment.pop("PYTHONHOME", None)
    return environment


def _kill_group(pid: int) -> None:
    """End what the server left of its process group: python backend stubs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
