"""`tritonstack build-engines`: engines for the GPU of this machine, put into a model repository."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from tritonstack.arguments import Parser, some_path, whole_number

if TYPE_CHECKING:
    from tritonstack.terminal import Progress
    from tritonstack_export.engine.build_engines import EntryResult


def main(argv: list[str]) -> int:
    """Run the command; exit code 1 when an entry failed."""
    arguments = _parser().parse_args(argv)
    from tritonstack.terminal import Progress, print_json
    from tritonstack_export.engine.build_engines import BuildOptions, build_engines, revert
    from tritonstack_export.engine.cache import EngineCache, default_root
    from tritonstack_export.engine.machine import find_machine

    progress = Progress()
    talk = _Talk(progress)
    if arguments.revert:
        results = revert(arguments.directory, arguments.model)
    else:
        results = build_engines(
            arguments.directory,
            find_machine=find_machine,
            cache=EngineCache(arguments.cache or default_root()),
            models=arguments.model,
            options=BuildOptions(arguments.engine, arguments.timeout, not arguments.no_timing_cache),
            talk=talk,
        )
    progress.update("")
    if arguments.json:
        print_json({"repository": str(arguments.directory), "models": [result.as_dict() for result in results]})
    else:
        print("\n".join(_lines(results)))
    return 1 if any(result.status == "failed" for result in results) else 0


class _Talk:
    """Progress of builds: redrawn on a terminal; elsewhere a line for each phase, and for each minute of one."""

    _QUIET_S = 60.0

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said = ("", "")
        self._said_at_s = 0.0

    def __call__(self, model: str, phase: str, share: float | None) -> None:
        text = f"{model}: {phase}" + (f" {share:.0%}" if share is not None else "")
        if sys.stderr.isatty():
            self._progress.update(text)
            return
        now_s = time.monotonic()
        # What changes within a phase, such as seconds waited, stands in parentheses.
        kind = (model, phase.partition(" (")[0])
        if share is None and (kind != self._said or now_s - self._said_at_s > self._QUIET_S):
            self._said, self._said_at_s = kind, now_s
            self._progress.note(text)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tritonstack build-engines",
        description="Build TensorRT engines of the ONNX models in a repository, for the GPU and the TensorRT of this\n"
        "machine, and let Triton serve them instead. Run it in the image that serves the repository. Engines come\n"
        "from a cache where it has them. model.onnx stays, and so does its config, as configs/onnxruntime.pbtxt.",
    )
    parser.add_argument("directory", type=some_path, metavar="DIR", help="the model repository")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="only this model (may be given more than once)"
    )
    parser.add_argument(
        "--engine",
        choices=("auto", "tensorrt", "none"),
        default="auto",
        help="auto: ONNX Runtime where no engine can be had, saying why (default); tensorrt: that is a failure; "
        "none: only say how each model is served",
    )
    parser.add_argument(
        "--cache",
        type=some_path,
        metavar="DIR",
        help="the engine cache (default: $TRITONSTACK_CACHE/engines, else ~/.cache/tritonstack/engines)",
    )
    parser.add_argument("--timeout", type=whole_number(1), metavar="SECONDS", help="time limit of each build")
    parser.add_argument(
        "--no-timing-cache", action="store_true", help="measure every kernel, and remember nothing of it"
    )
    parser.add_argument("--revert", action="store_true", help="serve by ONNX Runtime again, and remove the engines")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _lines(results: list[EntryResult]) -> list[str]:
    from tritonstack.terminal import human_bytes, human_seconds

    lines = []
    said: dict[tuple[str, str], list[str]] = {}
    for result in results:
        how = {"engine": "TensorRT", "onnx": "ONNX Runtime"}.get(result.status, result.status)
        if result.reason and not result.versions and not result.notes:
            # What is wrong with the machine is the same for every model: said once, for all of them.
            said.setdefault((how, result.reason), []).append(result.name)
            continue
        lines.append(f"{result.name}: {how}" + (f": {result.reason}" if result.reason else ""))
        for version in result.versions:
            record = version.record
            took = f" in {human_seconds(record['seconds'])}" if version.source == "built" else ""
            gpu = f"sm_{str(record.get('compute_capability', '?')).replace('.', '')}"
            lines.append(
                f"  version {version.version}: {version.source}{took}, {record.get('precision', '?')}, "
                f"{human_bytes(record.get('plan_bytes', 0))}, TensorRT {record.get('tensorrt', '?')}, {gpu}"
            )
        lines.extend(f"  note: {note}" for note in result.notes)
    return lines + [f"{', '.join(names)}: {how}: {reason}" for (how, reason), names in said.items()]
