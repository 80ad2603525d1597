"""`preflight_onnx`: a real TensorRT for RTX build of an ONNX file, without a GPU, whose engine is thrown away.

It is a proxy: the parser, the type checks and the profile checks are TensorRT's own, but the kernels are those of the
RTX product, and Triton's tensorrt backend loads no such engine. So nothing is ever kept of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import InputError, UsageError
from tritonstack.terminal import Progress
from tritonstack_export.preflight.capability import DEFAULT_CAPABILITIES, require_capabilities
from tritonstack_export.preflight.environment import RTX_VERSION, ensure_environment
from tritonstack_export.preflight.result import PreflightResult, Problem, Step
from tritonstack_export.preflight.result_cache import ResultCache, model_sha256

if TYPE_CHECKING:
    from tritonstack_export.engine.engine_error import EngineError
    from tritonstack_export.engine.profile import InputShape
    from tritonstack_export.engine.settings import BuildSettings

BUILDER = f"TensorRT for RTX {RTX_VERSION}"
PROXY_NOTE = f"No artefact: built with {BUILDER} as a proxy for TensorRT"

# At which step a kind of EngineError stops; all others are the build itself.
_STEP_OF_KIND: Mapping[str, Step] = {"empty": "file", "parse": "parse", "precision": "parse", "profile": "profiles"}
# Said of every model with integer ends, where there is nothing to do: the binding is INT64 as it should be.
_HARMLESS = re.compile(r"Make sure (?:in|out)put .* has Int64 binding")
# What is no fault of the model: raised, not reported.
_SETUP_KINDS = {"import", "gpu"}
# ONNX's names of the element types that TensorRT takes as inputs (DOUBLE becomes FLOAT there).
_INPUT_TYPES = {
    "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT4E2M1", "INT4", "INT8", "UINT8", "INT32", "INT64",
    "BOOL",
}  # fmt: skip
# The finding of `check` for a graph that breaks ONNX's own rules.
_STRUCTURE = "onnx-structure"
# TensorRT's words for the types of a network, from the lowest precision up.
_PRECISION_OF_TYPE = (
    ("FP4", "fp4"), ("INT4", "int4"), ("FP8", "fp8"), ("INT8", "int8"), ("HALF", "fp16"), ("BF16", "bf16"),
)  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """What an ONNX file declares: `inputs` that need a value (name, sizes or dimension names), the `external` data
    files. `types`: input -> the ONNX name of its element type. `sha256`: of the model with its data files, None where
    one is missing."""

    inputs: tuple[InputShape, ...]
    external: tuple[str, ...]
    types: Mapping[str, str]
    sha256: str | None


def read_graph(onnx: Path) -> Graph:
    """Read `onnx` without its weights. Raises InputError when it is no ONNX file or cannot be read."""
    from tritonstack_export.check.onnx_signature import UnreadableModel, read_signature
    from tritonstack_export.engine.profile import InputShape

    try:
        signature = read_signature(onnx)
    except UnreadableModel as error:
        raise InputError(
            f"{onnx} cannot be read as ONNX: {error}", next_step="copy or export the model again"
        ) from error
    except OSError as error:
        fix = "name the .onnx file itself" if isinstance(error, IsADirectoryError) else "check its permissions"
        raise InputError(f"{onnx} cannot be read: {error.strerror}", next_step=fix) from error
    free = [tensor for tensor in signature.inputs if not tensor.optional]
    external = tuple(sorted({tensor.location for tensor in signature.external}))
    return Graph(
        inputs=tuple(InputShape(tensor.name, _axes(tensor.name, tensor.shape)) for tensor in free),
        external=external,
        types={tensor.name: tensor.onnx_type for tensor in free},
        sha256=_digest(onnx, external),
    )


def _digest(onnx: Path, external: Sequence[str]) -> str | None:
    try:
        return model_sha256(onnx, list(external))
    except OSError:
        return None


def _axes(name: str, shape: tuple[int | str | None, ...] | None) -> tuple[int | str, ...]:
    """Dynamic axes without a name get one of their own; axis 0 the batch's, as all inputs share it."""
    return tuple(
        size if size is not None else "batch" if axis == 0 else f"{name}_{axis}"
        for axis, size in enumerate(shape or ())
    )


def preflight_onnx(
    onnx: Path,
    settings: BuildSettings,
    *,
    compute_capabilities: Sequence[str] = DEFAULT_CAPABILITIES,
    cache: ResultCache | None = None,
    site: Path | None = None,
    install: bool = True,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> PreflightResult:
    """Build `onnx` for all `compute_capabilities` and say what came of it; blocks until done.

    A model that fails is a result with a `problem`, not an exception. `cache` None: always build. `site`: a folder with
    TensorRT for RTX; None: the shared one, installed on the first build when `install` allows. `timeout_s` bounds one
    build. Nothing is written beside the model.

    Raises UsageError for capabilities that cannot be built for, and SetupError or EngineError when TensorRT for RTX
    cannot be installed or loaded.
    """
    capabilities = require_capabilities(compute_capabilities)
    plain, notes = _for_proxy(settings)
    blank = PreflightResult(str(onnx), None, BUILDER, capabilities, notes=notes)
    try:
        graph = read_graph(onnx)
    except InputError as error:
        return replace(blank, problem=_problem("file", error))
    blank = replace(blank, sha256=graph.sha256, notes=(*notes, *_double_notes(graph)))
    key = None
    if cache is not None and graph.sha256 is not None:
        key = cache.key(
            sha256=graph.sha256, settings=plain.as_key(), builder=BUILDER, compute_capabilities=capabilities
        )
        known = cache.read(key)
        if known is not None:
            return replace(known, onnx=str(onnx), notes=blank.notes)
    found = _judge(blank, onnx, graph, plain, site=site, install=install, timeout_s=timeout_s, progress=progress)
    # TensorRT read the file after its digest was taken: a result of other bytes is not kept under it.
    if cache is not None and key is not None and _digest(onnx, graph.external) == graph.sha256:
        cache.write(key, found)
    return found


def _for_proxy(settings: BuildSettings) -> tuple[BuildSettings, tuple[str, ...]]:
    """The settings that TensorRT for RTX can try without a GPU, and notes about the others."""
    plain, left_out = settings.for_rtx()
    notes = [f"not tried here, since it takes TensorRT itself: {', '.join(left_out)}"] if left_out else []
    if plain.plugins:
        names = ", ".join(path.name for path in plain.plugins)
        notes.append(f"plugins are made for TensorRT itself and not loaded here: {names}")
        plain = replace(plain, plugins=())
    return plain, tuple(notes)


def _double_notes(graph: Graph) -> tuple[str, ...]:
    doubles = [name for name, word in graph.types.items() if word == "DOUBLE"]
    if not doubles:
        return ()
    return (f"float64 inputs become float32 in TensorRT, without a word from it: {', '.join(doubles)}",)


def _judge(
    blank: PreflightResult,
    onnx: Path,
    graph: Graph,
    settings: BuildSettings,
    *,
    site: Path | None,
    install: bool,
    timeout_s: float | None,
    progress: Progress | None,
) -> PreflightResult:
    """The steps in order; the first that fails ends it."""
    from tritonstack_export.engine.engine_error import EngineError

    progress = progress or Progress(quiet=True)
    unsound = _unsound(onnx)
    if unsound is not None and unsound.kind != _STRUCTURE:
        return replace(blank, problem=unsound)
    misfit = _misfit(graph, settings)
    phases: list[str] = []
    folder = site if site is not None else ensure_environment(progress, install=install)
    try:
        # A profile that does not fit is told only after the parser has spoken: its verdict comes first in the steps.
        attempt = settings if misfit is None else replace(settings, profiles=())
        result = _build(blank, onnx, attempt, folder, timeout_s=timeout_s, progress=progress, phases=phases)
    except EngineError as error:
        if error.kind in _SETUP_KINDS:
            raise
        # A process that was stopped says nothing of steps that it had not come to.
        stopped = error.kind in ("timeout", "died", "memory") and "build" not in phases
        step: Step = "parse" if stopped else _STEP_OF_KIND.get(error.kind, "build")
        fault = unsound or misfit
        if fault is not None and step in ("profiles", "build"):
            return replace(blank, problem=fault)
        problem = _engine_problem(step, error)
        if step == "parse" and error.node is None and error.operator is None:
            problem = _blame_input(problem, graph)
        if unsound is not None:
            said = f"{problem.given}; {unsound.summary}" if problem.given else unsound.summary
            problem = replace(problem, given=said)
        if step == "build" and error.kind == "build" and len(blank.compute_capabilities) > 1:
            problem = _blame(problem, blank, onnx, settings, folder, timeout_s=timeout_s, progress=progress)
        return replace(blank, problem=problem, profiles=_as_lists(settings))
    # A file that the ONNX checker refuses goes to TensorRT all the same: it names the node, which the checker may not.
    fault = unsound or misfit
    return result if fault is None else replace(blank, problem=fault)


def _unsound(onnx: Path) -> Problem | None:
    """What `tritonstack check` would refuse about the file itself. TensorRT's parser takes an empty message for a model
    and speaks of a missing data file only in its log."""
    from tritonstack_export.check.finding import FindingList
    from tritonstack_export.check.onnx_file import check_onnx_file

    findings = FindingList(path=onnx, model=None)
    check_onnx_file(onnx, findings)
    for finding in findings.items:
        if finding.severity == "error":
            return Problem("file", finding.code, finding.message, remedy=finding.fix)
    return None


def _misfit(graph: Graph, settings: BuildSettings) -> Problem | None:
    """Why the profiles do not fit the graph, None when they do. TensorRT says -1 or None where this says a sentence."""
    from tritonstack_export.engine.profile import validate_profiles

    open_inputs = [tensor.name for tensor in graph.inputs if tensor.is_dynamic]
    if open_inputs and not settings.profiles:
        return Problem(
            "profiles",
            "profile",
            f"the input {open_inputs[0]!r} has dynamic dimensions and no bounds",
            remedy="give --min-shapes, --opt-shapes and --max-shapes, or export it with `dimensions` in the spec",
        )
    try:
        validate_profiles(settings.profiles, graph.inputs)
    except UsageError as error:
        return _problem("profiles", error)
    return None


def _build(
    blank: PreflightResult,
    onnx: Path,
    settings: BuildSettings,
    site: Path,
    *,
    timeout_s: float | None,
    progress: Progress,
    capabilities: tuple[str, ...] | None = None,
    phases: list[str] | None = None,
) -> PreflightResult:
    """A passed result; `phases` gets what the process came to, such as ``parse``. Raises EngineError."""
    from tritonstack_export.engine.build import EngineTensor, build
    from tritonstack_export.engine.home import RtxHome

    def on_progress(phase: str, share: float | None) -> None:
        if phases is not None:
            phases.append(phase)
        progress.update(f"{onnx}: {phase}{'' if share is None else f' {100 * share:.0f} %'}")

    outcome = build(
        onnx,
        settings,
        home=RtxHome(site),
        compute_capabilities=capabilities or blank.compute_capabilities,
        output=None,
        timeout_s=timeout_s,
        progress=on_progress,
    )

    def told(tensor: EngineTensor) -> str:
        shape = "x".join("?" if size < 0 else str(size) for size in tensor.shape or ())
        return f"{tensor.name} {tensor.dtype} {shape or 'scalar'}"

    return replace(
        blank,
        precision=lowest_precision(outcome.types),
        types=dict(outcome.types),
        inputs=tuple(told(tensor) for tensor in outcome.inputs),
        outputs=tuple(told(tensor) for tensor in outcome.outputs),
        profiles=_as_lists(settings),
        layers=outcome.layers,
        seconds=round(outcome.seconds, 3),
        engine_bytes=outcome.plan_bytes,
        peak_rss_bytes=outcome.peak_rss_bytes,
        warnings=tuple(text for text in outcome.warnings if not _HARMLESS.search(text)),
    )


def lowest_precision(types: Mapping[str, int]) -> str:
    """The lowest precision among TensorRT's dtype words: what makes a network an FP16 or INT8 one."""
    return next((name for word, name in _PRECISION_OF_TYPE if types.get(word)), "fp32")


def _blame(
    problem: Problem,
    blank: PreflightResult,
    onnx: Path,
    settings: BuildSettings,
    site: Path,
    *,
    timeout_s: float | None,
    progress: Progress,
) -> Problem:
    """`problem` with the capabilities that fail alone, where others pass: one build for all does not say."""
    from tritonstack_export.engine.engine_error import EngineError

    failing: list[str] = []
    for capability in blank.compute_capabilities:
        try:
            _build(blank, onnx, settings, site, timeout_s=timeout_s, progress=progress, capabilities=(capability,))
        except EngineError:
            failing.append(capability)
    if not failing or len(failing) == len(blank.compute_capabilities):
        return problem
    return replace(problem, summary=f"for compute capability {', '.join(failing)} only: {problem.summary}")


def _as_lists(settings: BuildSettings) -> tuple[Mapping[str, list[list[int]]], ...]:
    return tuple({name: bounds.as_lists() for name, bounds in profile.items()} for profile in settings.profiles)


def _blame_input(problem: Problem, graph: Graph) -> Problem:
    """`problem` with the inputs whose type is to blame: the parser reads them before any node, and names none."""
    unknown = [f"{name!r} ({word.lower()})" for name, word in graph.types.items() if word not in _INPUT_TYPES]
    if not unknown:
        return problem
    remedy = "export the model with another type of input, such as int32 or float32"
    if "STRING" in graph.types.values():
        remedy = "turn text into numbers before this model, in a model of its own (such as a tokenizer)"
    return replace(problem, summary=f"TensorRT has no such type of input: {', '.join(unknown)}", remedy=remedy)


def _said(error: InputError | EngineError) -> str | None:
    expected = f"expected {error.expected}" if error.expected else None
    return "; ".join(filter(None, (error.given, expected))) or None


def _problem(step: Step, error: InputError) -> Problem:
    return Problem(step, step, error.summary, given=_said(error), remedy=error.next_step)


def _engine_problem(step: Step, error: EngineError) -> Problem:
    return Problem(
        step,
        error.kind,
        error.summary,
        node=error.node,
        operator=error.operator,
        given=_said(error),
        remedy=error.remedy,
    )


def with_profile_problem(result: PreflightResult, error: InputError) -> PreflightResult:
    """`result` of a model whose repository says bounds that are wrong or none: it fails at the profiles, unless it
    failed before them."""
    if result.problem is not None and result.problem.step in ("file", "parse"):
        return result
    return replace(result, problem=_problem("profiles", error))
