"""What holds for the packages as a whole: import directions, public names, bare imports, every --help."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import tritonstack
from tritonstack import command
from tritonstack.command import COMMANDS

PACKAGES = ("tritonstack", "tritonstack_export", "tritonstack_deploy")
ROOT = Path(__file__).resolve().parent.parent
# Heavy or optional packages that no import of ours may need: they are loaded inside the functions that use them.
OPTIONAL = (
    "torch", "onnx", "onnxruntime", "onnxscript", "pydantic", "yaml", "PIL", "psutil", "hdrh", "safetensors",
    "transformers", "ml_dtypes", "pytriton", "tritonclient", "grpc", "google.protobuf",
)  # fmt: skip


def modules() -> list[str]:
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found.append(name)
        found += [
            m.name for m in pkgutil.walk_packages(package.__path__, f"{name}.") if not m.name.endswith("__main__")
        ]
    return found


def run_python(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)


def test_public_names_of_the_client_are_honest() -> None:
    for name in tritonstack.__all__:
        assert getattr(tritonstack, name) is not None, name
    assert sorted(tritonstack.__all__) == dir(tritonstack)
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = tritonstack.Clinet  # type: ignore[attr-defined]


def test_importing_a_package_does_nothing() -> None:
    source = (
        "import sys, threading\nbefore = set(sys.modules)\n"
        f"for name in {PACKAGES!r}: __import__(name)\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        f"heavy = sorted(new & set({OPTIONAL!r}) | (new & {{'numpy', 'logging', 'asyncio'}}))\n"
        "assert not heavy, heavy\nassert threading.active_count() == 1\n"
    )
    result = run_python(source)
    assert result.returncode == 0, result.stderr


def test_commands_start_in_a_bare_environment() -> None:
    """Every command's module, and its --help, works where only numpy and the standard library are installed."""
    for name, (module, _) in COMMANDS.items():
        source = (
            "import sys\n"
            f"for name in {OPTIONAL!r}: sys.modules[name] = None\n"
            f"import importlib; m = importlib.import_module({module!r})\n"
            "try: m.main(['--help'])\n"
            "except SystemExit as end: assert end.code == 0, end.code\n"
        )
        result = run_python(source)
        assert result.returncode == 0, f"{name}: {result.stderr}"


@pytest.mark.parametrize(
    ("package", "arguments", "install"),
    [
        ("pydantic", ["build-engines", "REPO"], "'tritonstack[export]'"),
        ("yaml", ["export", "spec.yaml", "--repository", "REPO"], "'tritonstack[export]'"),
        ("google", ["check", "REPO"], "google"),
    ],
)
def test_a_missing_package_is_named_with_what_brings_it(
    tmp_path: Path, package: str, arguments: list[str], install: str
) -> None:
    """As where only the base package is installed, such as in the image of a server."""
    arguments = [word.replace("REPO", str(tmp_path)) for word in arguments]
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    source = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from tritonstack.command import main; sys.exit(main({arguments!r}))\n"
    )
    result = run_python(source)
    expected = f"this needs the package {package!r}, which is not installed; next: pip install {install}\n"
    assert (result.returncode, result.stderr) == (1, f"tritonstack {arguments[0]}: error: {expected}")


def test_every_module_imports() -> None:
    names = modules()
    assert len(names) > 60
    source = "import importlib\n" + f"for name in {names!r}: importlib.import_module(name)"
    result = run_python(source)
    assert result.returncode == 0, result.stderr


def test_imports_run_one_way() -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_no_import_cycle() -> None:
    """No module of ours reaches itself through imports made when a module is loaded."""
    import grimp

    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            # A package's __init__ re-exports its modules; what counts is a module that comes back to itself.
            if not imported.startswith(module) and not module.startswith(imported):
                chain = graph.find_shortest_chain(importer=imported, imported=module)
                cycle = (module, *chain) if chain else ()
                assert not cycle or lazy(graph, cycle), " -> ".join(cycle)


def lazy(graph: object, chain: tuple[str, ...]) -> list[tuple[str, str]]:
    """The links of a chain that are made inside a function, so that they do not run at import."""
    found = []
    for importer, imported in pairwise(chain):
        details = graph.get_import_details(importer=importer, imported=imported)  # type: ignore[attr-defined]
        if all(d["line_contents"].startswith((" ", "\t")) or indented(importer, d["line_number"]) for d in details):
            found.append((importer, imported))
    return found


def indented(module: str, line: int) -> bool:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text().splitlines()[line - 1].startswith((" ", "\t"))


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_screen(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tritonstack", *([name] if name else []), "--help"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: tritonstack")
    assert result.stdout.count("\n") <= 60
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", [[], ["exprot"], ["export", "--no-such-flag"], ["load"]])
def test_wrong_usage_exits_2_in_one_line(arguments: list[str]) -> None:
    result = subprocess.run([sys.executable, "-m", "tritonstack", *arguments], capture_output=True, text=True)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    if arguments:
        assert result.stderr.count("\n") == 1


def test_unknown_command_names_the_nearest() -> None:
    result = subprocess.run([sys.executable, "-m", "tritonstack", "exprot"], capture_output=True, text=True)
    assert "did you mean 'export'" in result.stderr


def test_version() -> None:
    result = subprocess.run([sys.executable, "-m", "tritonstack", "--version"], capture_output=True, text=True)
    assert result.stdout.strip() == f"tritonstack {tritonstack.__version__}"


def run_shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-m", "tritonstack"], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("arguments", ["--help", "load --help", "--version", "check DIR", "check DIR --json"])
def test_a_result_that_cannot_be_written_is_a_failure(arguments: str, tmp_path: Path) -> None:
    """A file-size limit of zero stands in for a full disk: both make the write fail."""
    arguments = arguments.replace("DIR", "--allow-empty empty")
    line = f"cd {tmp_path} && mkdir empty && trap '' XFSZ && ulimit -f 0 && \"$@\" {arguments} > out"
    result = run_shell(line)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1), result.stderr
    assert "error: File too large" in result.stderr and "internal" not in result.stderr


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed(streams: str, tmp_path: Path) -> None:
    result = run_shell(f'cd {tmp_path} && mkdir empty && "$@" check empty --allow-empty {streams}')
    assert (result.returncode, result.stderr) == (0, "")


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    result = run_shell(
        f'cd {tmp_path} && mkdir empty && "$@" check empty --allow-empty --json | true; echo $PIPESTATUS'
    )
    assert (result.stdout, result.stderr) in (("1\n", ""), ("0\n", ""))


def test_ctrl_c_while_a_compiled_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "interrupted_import.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\n"
        "except KeyboardInterrupt:\n    raise ImportError('umath failed to import') from None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "check", ("interrupted_import", ""))
    assert command.main(["check", "."]) == 130
    assert capsys.readouterr().err == "tritonstack check: interrupted\n"
