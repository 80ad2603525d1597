"""The command `tritonstack`: a small table that forwards to the module that does the work.

Only the chosen module is imported, so `tritonstack --help` costs little more than starting Python.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys

COMMANDS = {
    # name: (module with main(argv) -> int, one-line summary)
    "export": ("tritonstack_export.command", "export a PyTorch model into a Triton model repository"),
    "check": ("tritonstack_export.check.command", "validate a model repository before any server sees it"),
    "serve": ("tritonstack_deploy.serve.command", "serve a model repository with the embedded tritonserver"),
    "infer": ("tritonstack.infer.command", "send one inference request and show the answer"),
    "load": ("tritonstack.load.command", "put a model under load and measure it"),
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
    """Run `argv` (without the program's name) and return the exit code."""
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
    """Import and run one command's module; the broad catch of the command line lives here and nowhere else."""
    import importlib
    import os

    from tritonstack.errors import TritonstackError

    try:
        module = importlib.import_module(COMMANDS[name][0])
        code: int = module.main(argv)
        sys.stdout.flush()
        return code
    except TritonstackError as error:
        print(f"tritonstack {name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"tritonstack {name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`); keep Python's shutdown from complaining about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("TRITONSTACK_DEBUG"):
            raise
        print(
            f"tritonstack {name}: internal error: {type(error).__name__}: {error}\n"
            "This is a defect of tritonstack: set TRITONSTACK_DEBUG=1 to see where, and please report it.",
            file=sys.stderr,
        )
        return 1


def run() -> None:
    """Entry point of the installed command."""
    sys.exit(main(sys.argv[1:]))
