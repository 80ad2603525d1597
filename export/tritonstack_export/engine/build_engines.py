"""`build_engines`: the ONNX entries of a repository get engines for this machine, or stay with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tritonstack.errors import RepositoryError, TritonstackError, UsageError
from tritonstack_export.check.version_policy import served_versions
from tritonstack_export.engine.build import build
from tritonstack_export.engine.build_record import build_record, interface_of
from tritonstack_export.engine.cache import CachedEngine, EngineCache
from tritonstack_export.engine.cache_key import engine_key, key_parts, onnx_sha256, plugin_digests
from tritonstack_export.engine.engine_config import problems_of_fit, require_fit
from tritonstack_export.engine.entry import EngineEntry, VersionSource, read_entry, read_version
from tritonstack_export.engine.entry_switch import (
    VersionEngine,
    fall_back,
    is_current,
    publish_engines,
    require_writable,
)
from tritonstack_export.engine.machine import Machine
from tritonstack_export.engine.plan_record import RECORD_NAME, read_record
from tritonstack_export.engine.profile import overlap_notes
from tritonstack_export.engine.settings import BuildSettings
from tritonstack_export.repository.layout import EntryPaths, iterate_entries

if TYPE_CHECKING:
    from tritonstack_export.repository import ModelConfig

Policy = Literal["auto", "tensorrt", "none"]
Status = Literal["engine", "onnx", "left alone", "failed"]
Talk = Callable[[str, str, float | None], None]
"""Told the model, what is going on, and the share of it that is done (0 to 1, None: unknown)."""


@dataclass(frozen=True)
class VersionResult:
    """The engine of one version. `source`: built now, taken from the cache, or in place already."""

    version: int
    key: str
    source: Literal["built", "cached", "in place"]
    record: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        fields = ("tensorrt", "compute_capability", "precision_asked", "precision", "plan_bytes", "seconds", "warnings")
        return {
            "version": self.version,
            "key": self.key,
            "source": self.source,
            **{name: self.record.get(name) for name in fields},
        }


@dataclass(frozen=True)
class EntryResult:
    """How an entry is served now. `reason`: why not by an engine. `error`: that, where something was refused."""

    name: str
    status: Status
    changed: bool = False
    reason: str | None = None
    error: TritonstackError | None = None
    versions: tuple[VersionResult, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "status": self.status,
            "changed": self.changed,
            "reason": self.reason,
            "error": self.error.as_dict() if self.error is not None else None,
            "versions": [version.as_dict() for version in self.versions],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class BuildOptions:
    """How to go about it. `timeout_s`: for each engine. `timing_cache`: false measures every kernel anew."""

    policy: Policy = "auto"
    timeout_s: float | None = None
    timing_cache: bool = True


def build_engines(
    repository: Path,
    *,
    find_machine: Callable[[], Machine],
    cache: EngineCache,
    models: Sequence[str] = (),
    options: BuildOptions = BuildOptions(),
    talk: Talk | None = None,
) -> list[EntryResult]:
    """Build or fetch the engines of all ONNX entries (or of `models`), and switch the entries to them.

    With the policy auto an entry whose engine cannot be had is served by ONNX Runtime, and says why; with tensorrt its
    result is failed; with none nothing is changed. One entry's trouble never touches another.

    Raises UsageError for a model that is not there.
    """
    chosen = select_entries(repository, models)
    entries: list[tuple[EntryPaths, EngineEntry | str | TritonstackError]] = []
    for paths in chosen:
        try:
            entries.append((paths, read_entry(paths)))
        except TritonstackError as error:
            entries.append((paths, error))
    if options.policy == "none":
        return [_as_it_is(paths, entry) for paths, entry in entries]
    machine: Machine | TritonstackError | None = None
    results = []
    for paths, entry in entries:
        if isinstance(entry, EngineEntry) and machine is None:
            try:
                machine = find_machine()
            except TritonstackError as error:
                machine = error
        results.append(_one(paths, entry, machine, cache, options, talk))
    return results


def select_entries(repository: Path, models: Sequence[str]) -> list[EntryPaths]:
    """The entries to work on. Raises UsageError for a folder that is none, and for names that are not there."""
    if not repository.is_dir():
        raise UsageError(f"{repository} is no folder", expected="a model repository")
    there = {paths.name: paths for paths in iterate_entries(repository)}
    if not there:
        next_step = f"pass {repository.absolute().parent}" if (repository / "config.pbtxt").is_file() else None
        raise UsageError(f"no models found in {repository}", expected="a model repository", next_step=next_step)
    for name in models:
        if name not in there:
            raise UsageError(f"--model: there is no model {name!r}", expected=f"one of {', '.join(there)}")
    return [paths for name, paths in there.items() if not models or name in models]


def revert(repository: Path, models: Sequence[str] = ()) -> list[EntryResult]:
    """Serve the entries by ONNX Runtime again and remove their engines; the cache keeps them."""
    results = []
    for paths in select_entries(repository, models):
        try:
            entry = read_entry(paths)
            if isinstance(entry, str):
                results.append(EntryResult(paths.name, "left alone", reason=entry))
                continue
            require_writable(entry)
            changed, notes = fall_back(entry, remove=True)
            results.append(EntryResult(paths.name, "onnx", changed, reason="as asked", notes=notes))
        except TritonstackError as error:
            results.append(EntryResult(paths.name, "failed", reason=str(error), error=error))
    return results


def _as_it_is(paths: EntryPaths, entry: EngineEntry | str | TritonstackError) -> EntryResult:
    if isinstance(entry, TritonstackError):
        return EntryResult(paths.name, "failed", reason=str(entry), error=entry)
    if isinstance(entry, str):
        return EntryResult(paths.name, "left alone", reason=entry)
    if not entry.switched:
        return EntryResult(paths.name, "onnx", reason="no engine was asked for")
    versions = []
    for number in paths.versions():
        try:
            record = read_record(paths.version(number) / RECORD_NAME).fields
        except TritonstackError as error:
            return EntryResult(paths.name, "failed", reason=str(error), error=error)
        versions.append(VersionResult(number, str(record.get("key")), "in place", record))
    return EntryResult(paths.name, "engine", versions=tuple(versions))


def _one(
    paths: EntryPaths,
    entry: EngineEntry | str | TritonstackError,
    machine: Machine | TritonstackError | None,
    cache: EngineCache,
    options: BuildOptions,
    talk: Talk | None,
) -> EntryResult:
    if isinstance(entry, str):
        return EntryResult(paths.name, "left alone", reason=entry)
    if isinstance(entry, TritonstackError):
        return EntryResult(paths.name, "failed", reason=str(entry), error=entry)
    try:
        if isinstance(machine, TritonstackError):
            raise machine
        if machine is None:
            raise AssertionError("an entry to build was reached without looking for TensorRT")
        return _engines_of(entry, machine, cache, options, talk)
    except TritonstackError as error:
        if options.policy == "tensorrt":
            return EntryResult(paths.name, "failed", reason=str(error), error=error)
        return _on_onnx(entry, error)


def _on_onnx(entry: EngineEntry, error: TritonstackError) -> EntryResult:
    """ONNX Runtime serves it, since there is no engine for this machine."""
    try:
        # As it is by now: the trouble may have come after the switch.
        current = read_entry(entry.paths)
        switched = isinstance(current, EngineEntry) and current.switched
        changed, notes = fall_back(entry, remove=False) if switched else (False, ())
    except TritonstackError as second:
        return EntryResult(entry.name, "failed", reason=str(second), error=second)
    return EntryResult(entry.name, "onnx", changed, reason=str(error), error=error, notes=notes)


def _engines_of(
    entry: EngineEntry, machine: Machine, cache: EngineCache, options: BuildOptions, talk: Talk | None
) -> EntryResult:
    timing = None
    if options.timing_cache and not machine.home.is_rtx:
        timing = cache.timing_cache(machine.tensorrt, machine.compute_capability)
    results: list[VersionResult] = []
    engines: list[VersionEngine] = []
    notes: list[str] = []
    profiles: dict[int, int] = {}
    with ExitStack() as held:
        for number in entry.paths.versions():
            source = read_version(entry, number, timing_cache=timing)
            _require_servable(entry, source.settings)
            notes += [note for note in overlap_notes(source.settings.profiles) if note not in notes]
            notes += [note for note in _server_notes(source.settings) if note not in notes]
            engine, origin = _engine(entry, source, machine, cache, options, talk)
            # From here on `engines gc` leaves it alone, however long the other versions take.
            held.enter_context(cache.in_use(engine.key))
            results.append(VersionResult(number, engine.key, origin, engine.record))
            engines.append(VersionEngine(number, engine.plan, engine.record, in_place=origin == "in place"))
            profiles[number] = len(source.settings.profiles)

        def require(config: ModelConfig) -> None:
            notes.extend(_misfits(entry, config, results))

        served = served_versions(entry.config, tuple(profiles)) or tuple(profiles)
        changed, said = publish_engines(
            entry, engines, profiles=max(profiles[number] for number in served), require=require
        )
    warnings = [warning for result in results for warning in result.record.get("warnings", ())]
    remarks = tuple(dict.fromkeys((*notes, *said, *warnings, *cache.notes)))
    cache.notes.clear()
    return EntryResult(entry.name, "engine", changed, versions=tuple(results), notes=remarks)


def _require_servable(entry: EngineEntry, settings: BuildSettings) -> None:
    if settings.weights == "stripped":
        raise UsageError(
            f"engine.weights of {entry.name!r} is stripped, and Triton's tensorrt backend puts no weights back",
            expected="fixed or refit",
            next_step="change it in the spec and export the model again",
        )


def _misfits(entry: EngineEntry, config: ModelConfig, results: Sequence[VersionResult]) -> list[str]:
    """Remarks on versions that `config` does not serve and that it would not fit. Raises RepositoryError for a served
    one: a config.pbtxt is for all versions, and was written for the newest."""
    served = served_versions(config, [result.version for result in results])
    notes = []
    for result in results:
        interface = interface_of(result.record)
        if result.version in served:
            require_fit(config, interface, model=f"{entry.name}/{result.version}")
        elif problems := problems_of_fit(config, interface):
            notes.append(f"version {result.version} is not served, and could not be: {'; '.join(problems)}")
    return notes


def _server_notes(settings: BuildSettings) -> list[str]:
    """What the server has to be started with for such engines."""
    notes = []
    if settings.version_compatible:
        notes.append(
            "start Triton with --backend-config=tensorrt,version-compatible=true: the engine brings its own runtime"
        )
    if settings.plugins:
        names = ";".join(str(path) for path in settings.plugins)
        notes.append(f"start Triton with --backend-config=tensorrt,plugins={names}")
    return notes


def _engine(
    entry: EngineEntry,
    source: VersionSource,
    machine: Machine,
    cache: EngineCache,
    options: BuildOptions,
    talk: Talk | None,
) -> tuple[CachedEngine, Literal["built", "cached", "in place"]]:
    parts = key_parts(
        model_sha256=onnx_sha256(source.onnx),
        settings=source.settings,
        tensorrt=machine.tensorrt,
        compute_capability=machine.compute_capability,
        gpu=machine.gpu,
        plugins=plugin_digests(source.settings.plugins),
    )
    key = engine_key(parts)
    label = f"{entry.name}/{source.version}"
    if is_current(entry, source.version, key):
        folder = entry.paths.version(source.version)
        return CachedEngine(key, folder / "model.plan", read_record(folder / RECORD_NAME).fields), "in place"
    require_writable(entry)

    def make(plan: Path) -> dict[str, Any]:
        outcome = build(
            source.onnx,
            source.settings,
            home=machine.home,
            compute_capabilities=machine.targets,
            output=plan,
            timeout_s=options.timeout_s,
            progress=(lambda phase, share: talk(label, phase, share)) if talk is not None else None,
        )
        # TensorRT read the file after its digest was taken: another content must not lie under this key for ever.
        if onnx_sha256(source.onnx) != parts["onnx_sha256"]:
            raise RepositoryError(f"{source.onnx} was changed while its engine was built", next_step="run it again")
        return build_record(parts, outcome, machine, source.settings, model=label)

    def waiting(owner: str, seconds: float) -> None:
        if talk is not None:
            talk(label, f"waiting for {owner}, which builds it ({seconds:.0f} s)", None)

    engine, built = cache.get_or_build(key, make, on_wait=waiting)
    return engine, "built" if built else "cached"
