"""The command `tritonstack`: a small table that forwards to the module that does the work.

Only the chosen module is imported, so `tritonstack --help` costs little more than starting Python.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys

# Spelled out, since importing typing or collections.abc would double what `--help` costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = {
    # name: (module with main(argv) -> int, one-line summary)
    "export": ("tritonstack_export.command", "export a PyTorch model into a Triton model repository"),
    "check": ("tritonstack_export.check.command", "validate a model repository before any server sees it"),
    "preflight": ("tritonstack_export.preflight.command", "see without a GPU whether TensorRT will take a model"),
    "build-engines": ("tritonstack_export.engine.command", "build TensorRT engines for the GPU of this machine"),
    "engines": ("tritonstack_export.engine.cache_command", "list or clean the cache of TensorRT engines"),
    "serve": ("tritonstack_deploy.serve.command", "serve a model repository with the embedded tritonserver"),
    "infer": ("tritonstack.infer.command", "send one inference request and show the answer"),
    "load": ("tritonstack.load.command", "put a model under load and measure it"),
}

_EXTRAS = {
    # extra: names to import that it brings
    "export": ("onnx", "onnxruntime", "onnxscript", "pydantic", "safetensors", "torch", "yaml"),
    "precision": ("modelopt", "onnx_graphsurgeon", "onnxconverter_common", "onnxslim", "polygraphy"),
    "image": ("PIL",),
    "load": ("hdrh",),
    "deploy": ("psutil",),
}


def help_text() -> str:
    """The text of `tritonstack --help`."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: tritonstack COMMAND [ARGUMENTS]\n\n"
        "From a PyTorch model to an answer from NVIDIA Triton.\n\n"
        f"commands:\n{rows}\n\n"
        "options:\n"
        "  -h, --help     show this help\n"
        "  --version      show the version\n\n"
        "`tritonstack COMMAND --help` shows what a command takes."
    )


def main(argv: list[str]) -> int:
    """Run `argv` (without the program's name) and return the exit code.

    What was printed has reached stdout by then: a full disk or a closed pipe there is a failure, not a success.
    """
    name = f"tritonstack {argv[0]}" if argv and argv[0] in COMMANDS else "tritonstack"
    return _guarded(name, lambda: _dispatch(argv))


def _dispatch(argv: list[str]) -> int:
    if not argv:
        print(help_text(), file=sys.stderr)
        return 2
    name, *rest = argv
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name in ("-V", "--version"):
        from tritonstack._version import __version__

        print(f"tritonstack {__version__}")
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches

        close = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}"
        print(f"tritonstack: error: no such command {name!r}; {hint}", file=sys.stderr)
        return 2
    return _forward(name, rest)


def _forward(name: str, argv: list[str]) -> int:
    import importlib
    import signal

    interrupted = False

    def on_interrupt(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        module = importlib.import_module(COMMANDS[name][0])
        code: int = module.main(argv)
    except Exception as error:
        # Compiled modules (numpy's) report a Ctrl-C while they are imported as an ImportError of their own.
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    return code


def _guarded(name: str, work: Callable[[], int]) -> int:
    """Run `work` and flush stdout; the broad catch of the command line lives here and nowhere else."""
    try:
        try:
            return work()
        finally:
            # Also after SystemExit, with which `--help` ends.
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`).
        _drop_stdout()
        return 1
    except Exception as error:
        return _told(name, error)


def _told(name: str, error: Exception) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    import os

    from tritonstack.errors import TritonstackError

    if isinstance(error, TritonstackError):
        print(f"{name}: error: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, ModuleNotFoundError) and (lacking := _missing(error)):
        print(f"{name}: error: {lacking}", file=sys.stderr)
        return 1
    if refused := _refused_by_the_system(error):
        _drop_stdout()
        print(f"{name}: error: {refused}", file=sys.stderr)
        return 1
    if os.environ.get("TRITONSTACK_DEBUG"):
        raise error
    print(
        f"{name}: internal error: {type(error).__name__}: {error}\n"
        "This is a defect of tritonstack: set TRITONSTACK_DEBUG=1 to see where, and please report it.",
        file=sys.stderr,
    )
    return 1


def _missing(error: ModuleNotFoundError) -> str | None:
    """What to tell about a package that an extra brings, wherever its import failed; None for modules of our own."""
    package = (error.name or "").partition(".")[0]
    if not package or package.startswith("tritonstack"):
        return None
    install = next((f"'tritonstack[{extra}]'" for extra, brings in _EXTRAS.items() if package in brings), package)
    return f"this needs the package {package!r}, which is not installed; next: pip install {install}"


def _refused_by_the_system(error: Exception) -> str | None:
    """What to tell about an error that this machine's limits explain, wherever it came up; None for all others."""
    import errno

    if isinstance(error, MemoryError):
        return f"out of memory{f': {error}' if str(error) else ''}; next: ask for less, or use a larger machine"
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "free some space there, or write elsewhere (TMPDIR says where temporary files go)"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "check the owner and the permissions"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "raise the limit (ulimit -n)"
    else:
        return None
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}; next: {advice}"


def _drop_stdout() -> None:
    """Send what stdout still holds nowhere, so that Python's shutdown does not complain about it again."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _open_closed_streams() -> None:
    """Give the streams that the caller closed (`>&-`) a place, so that no file of ours gets their descriptors."""
    import os

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            stream = os.fdopen(number, "r" if number == 0 else "w", closefd=False)
            setattr(sys, name, stream)


def run() -> None:
    """Entry point of the installed command."""
    _open_closed_streams()
    sys.exit(main(sys.argv[1:]))
