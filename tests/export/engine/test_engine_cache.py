"""The engine cache: races between real processes, kills in the middle, damage, full disks, gc."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from engine_models import listing, plan_bytes

from tritonstack.command import main
from tritonstack.errors import SetupError
from tritonstack_export.engine import key_lock as locks
from tritonstack_export.engine.cache import EngineCache, default_root
from tritonstack_export.engine.cache_content import entries, sweep
from tritonstack_export.engine.cache_key import engine_key, key_parts, onnx_sha256, plugin_digests
from tritonstack_export.engine.key_lock import Busy, key_lock
from tritonstack_export.engine.settings import Bounds, BuildSettings

KEY = "ab" * 32
RECORD = {"tensorrt": "10.14.1.48", "compute_capability": "9.0", "model": "net/1", "precision": "fp16"}

BUILDER = """
import os, sys, time
from pathlib import Path
from engine_models import plan_bytes
from tritonstack_export.engine.cache import EngineCache
root, log, stop = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if stop == "no flock":
    import fcntl
    def refuse(handle, how): raise OSError(95, "no locks here")
    fcntl.flock = refuse
def point(name):
    if stop == name:
        Path(log + ".ready").touch()
        time.sleep(600)
def build(plan):
    with open(log, "a") as file: file.write(f"{os.getpid()}\\n")
    point("start")
    plan.write_bytes(plan_bytes()[:100])
    point("half")
    time.sleep(0.3)
    plan.write_bytes(plan_bytes())
    point("whole")
    return {"tensorrt": "10.14.1.48", "compute_capability": "9.0"}
rename = Path.rename
def late(self, target):
    point("rename")
    return rename(self, target)
Path.rename = late
waited = []
engine, built = EngineCache(root).get_or_build("ab" * 32, build, on_wait=lambda owner, s: waited.append(owner))
print(built, engine.plan.stat().st_size, waited[-1] if waited else "")
"""


def builder(tmp_path: Path, root: Path, *, stop: str = "never") -> subprocess.Popen[str]:
    script = tmp_path / "builder.py"
    if not script.exists():
        script.write_text(BUILDER)
    return subprocess.Popen(
        [sys.executable, str(script), str(root), str(tmp_path / "log"), stop],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
    )


def store(cache: EngineCache, key: str = KEY, *, plan: bytes | None = None, **fields: Any) -> None:
    def make(path: Path) -> dict[str, Any]:
        path.write_bytes(plan if plan is not None else plan_bytes())
        return {**RECORD, **fields}

    cache.get_or_build(key, make)


def no_flock(handle: int, how: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "no locks here")


@pytest.mark.parametrize("how", ["flock", "no flock"])
def test_eight_builders_at_once_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """While gc runs all the time, and also where the filesystem has no flock."""
    root = tmp_path / "cache"
    if how == "no flock":
        monkeypatch.setattr(fcntl, "flock", no_flock)
    processes = [builder(tmp_path, root, stop=how) for _ in range(8)]
    while any(process.poll() is None for process in processes):
        assert sweep(EngineCache(root)) == ([], [])
        time.sleep(0.02)
    outputs = [process.communicate(timeout=120)[0].split(maxsplit=2) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert len((tmp_path / "log").read_text().split()) == 1
    assert sorted(output[0] for output in outputs) == ["False"] * 7 + ["True"]
    assert {output[1] for output in outputs} == {str(len(plan_bytes()))}
    assert any("process " in output[2] for output in outputs if len(output) > 2)
    assert {path.name for path in (root / "ab").iterdir()} == {KEY, f"{KEY}.lock"}


@pytest.mark.parametrize("moment", ["start", "half", "whole", "rename"])
def test_a_builder_that_is_killed_leaves_only_garbage(tmp_path: Path, moment: str) -> None:
    root = tmp_path / "cache"
    victim = builder(tmp_path, root, stop=moment)
    ready = tmp_path / "log.ready"
    for _ in range(400):
        if ready.exists():
            break
        time.sleep(0.05)
    cache = EngineCache(root)
    # While it lives, nobody takes its work for garbage.
    assert sweep(cache) == ([], [])
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert entries(cache) == [] and cache.find(KEY) is None
    removed, busy = sweep(cache)
    assert ([re.sub(r"\..{64}\..*", "work", item.path.name) for item in removed], busy) == (["work"], [])
    assert list((root / "ab").iterdir()) == []
    # The next one does not wait for the lease of a process that is dead on the same machine.
    start = time.monotonic()
    next_one = builder(tmp_path, root)
    assert next_one.communicate(timeout=60)[0].split()[0] == "True"
    assert time.monotonic() - start < 20
    assert cache.find(KEY) is not None


def test_a_waiting_builder_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    victim = builder(tmp_path, root, stop="half")
    while not (tmp_path / "log.ready").exists():
        time.sleep(0.05)
    heir = builder(tmp_path, root)
    time.sleep(1.0)
    assert heir.poll() is None
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert heir.communicate(timeout=60)[0].split()[0] == "True"


def test_a_lease_of_another_machine_counts_while_it_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a volume whose flock does not reach the other machine: the lease alone decides."""
    monkeypatch.setattr(locks, "LEASE_S", 0.6)
    lock = tmp_path / "key.lock"
    lease = tmp_path / "key.lease"
    lease.write_text(json.dumps({"host": "node-7", "boot": "other", "pid": 12, "token": "t"}))
    with pytest.raises(Busy, match="process 12 on node-7"), key_lock(lock, wait=False):
        pass
    seen: list[tuple[str, float]] = []

    def beat(owner: str, seconds: float) -> None:
        seen.append((owner, seconds))
        if seconds < 1.5:
            os.utime(lease)

    with key_lock(lock, on_wait=beat):
        assert json.loads(lease.read_text())["pid"] == os.getpid()
    assert seen[-1][1] >= 1.5 and seen[0][0] == "process 12 on node-7"
    assert not lease.exists()


def test_a_lease_that_somebody_took_over_is_not_removed(tmp_path: Path) -> None:
    lease = tmp_path / "key.lease"
    with key_lock(tmp_path / "key.lock"):
        lease.write_text("theirs")
    assert lease.read_text() == "theirs"


def test_without_flock_the_lease_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    lock = tmp_path / "key.lock"
    with key_lock(lock), pytest.raises(Busy, match=f"process {os.getpid()}"), key_lock(lock, wait=False):
        pass
    with key_lock(lock, wait=False):
        pass


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "model.plan").write_bytes(b"x" * len(plan_bytes())), "the SHA-256 of model.plan differs"),
        (lambda f: (f / "model.plan").write_bytes(plan_bytes()[:50]), "has 50 bytes instead of"),
        (lambda f: (f / "model.plan").write_bytes(b""), "has 0 bytes"),
        (lambda f: (f / "model.plan").unlink(), "model.plan: No such file"),
        (lambda f: (f / "record.json").unlink(), "record.json: No such file"),
        (lambda f: (f / "record.json").write_text("{"), "record.json is no JSON"),
        (lambda f: (f / "record.json").write_text("[]"), "is no JSON object"),
        (lambda f: (f / "record.json").write_text('{"key": "other"}'), "belongs to another engine"),
    ],
)
def test_damaged_entries_are_built_again(tmp_path: Path, damage: Any, message: str) -> None:
    cache = EngineCache(tmp_path / "cache")
    store(cache)
    damage(cache.folder(KEY))
    again = EngineCache(tmp_path / "cache")
    engine, built = again.get_or_build(KEY, lambda path: {**RECORD, "n": path.write_bytes(plan_bytes())})
    assert built and engine.plan.read_bytes() == plan_bytes()
    assert message in again.notes[0] and "is built again" in again.notes[0]
    assert {path.name for path in cache.folder(KEY).parent.iterdir()} == {KEY, f"{KEY}.lock"}


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "cache")

    def fail(path: Path) -> dict[str, Any]:
        path.write_bytes(b"half")
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        cache.get_or_build(KEY, fail)
    assert [path.name for path in (cache.root / "ab").iterdir()] == [f"{KEY}.lock"]


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: both make the write fail."""
    source = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from tritonstack_export.engine.cache import EngineCache\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: EngineCache(Path(sys.argv[1])).get_or_build('ab' * 32, lambda p: p.write_bytes(bytes(9999)) and {})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    result = subprocess.run([sys.executable, "-c", source, str(tmp_path / "cache")], capture_output=True, text=True)
    assert result.stdout.startswith("SetupError the engine cache"), result.stderr
    assert "File too large" in result.stdout and "choose another --cache" in result.stdout
    assert [path.name for path in (tmp_path / "cache" / "ab").iterdir()] == [f"{KEY}.lock"]


def test_no_space_left_names_gc(tmp_path: Path) -> None:
    def full(path: Path) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    with pytest.raises(
        SetupError, match=r"disk of the engine cache .* is full; next: free space with `tritonstack engines gc`"
    ):
        EngineCache(tmp_path / "cache").get_or_build(KEY, full)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"the engine cache .*file/cache cannot be written: Not a directory"):
        store(EngineCache(tmp_path / "file" / "cache"))


def keys(**changes: Any) -> str:
    settings = changes.pop("settings", BuildSettings(({"x": Bounds((1, 3), (2, 3), (4, 3))},)))
    given = {"model_sha256": "m", "tensorrt": "10.14.1", "compute_capability": "9.0", "gpu": "H200", "plugins": {}}
    return engine_key(key_parts(settings=settings, **{**given, **changes}))


def test_what_the_key_is_made_of(tmp_path: Path) -> None:
    same = BuildSettings(({"x": Bounds((1, 3), (2, 3), (4, 3))},), timing_cache=tmp_path)
    assert keys() == keys(settings=same) and len(keys()) == 64
    others = [
        keys(model_sha256="n"),
        keys(tensorrt="10.14.2"),
        keys(compute_capability="8.6"),
        keys(gpu="H100"),
        keys(plugins={"p.so": "d"}),
        keys(settings=BuildSettings()),
        *(
            keys(settings=BuildSettings(same.profiles, **{name: value}))
            for name, value in (
                ("precision", "fp16"), ("workspace_bytes", 1), ("optimization_level", 5), ("version_compatible", True),
                ("hardware", "ampere_plus"), ("weights", "refit"), ("sparsity", True), ("tf32", False),
            )
        ),
    ]  # fmt: skip
    assert len({keys(), *others}) == len(others) + 1
    plus = BuildSettings(hardware="ampere_plus")
    assert keys(settings=plus, gpu="A10") == keys(settings=plus, gpu="A100")


def test_the_digest_of_a_model_covers_its_external_weights(tmp_path: Path) -> None:
    from engine_models import conv, save

    path = save(conv(), tmp_path / "model.onnx", external=True)
    first = onnx_sha256(path)
    data = tmp_path / "model.onnx.data"
    content = bytearray(data.read_bytes())
    content[5] ^= 1
    data.write_bytes(content)
    assert onnx_sha256(path) != first


def test_plugins_count_by_content(tmp_path: Path) -> None:
    plugin = tmp_path / "p.so"
    plugin.write_bytes(b"one")
    first = plugin_digests([plugin])
    plugin.write_bytes(b"two")
    assert plugin_digests([plugin]) != first
    with pytest.raises(SetupError, match=r"plugin library .*q\.so cannot be read"):
        plugin_digests([tmp_path / "q.so"])


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITONSTACK_CACHE", str(tmp_path))
    assert default_root() == tmp_path / "engines"
    monkeypatch.delenv("TRITONSTACK_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".cache" / "tritonstack" / "engines"


def filled(tmp_path: Path) -> EngineCache:
    """Three engines, unused for 40, 10 and 1 days; the oldest by another TensorRT."""
    cache = EngineCache(tmp_path / "cache")
    for number, (days, version) in enumerate(((40, "10.3.0.26"), (10, "10.14.1.48"), (1, "10.14.1.48"))):
        key = f"{number}{number}" * 32
        store(cache, key, plan=plan_bytes(bytes([number])), tensorrt=version)
        when = time.time() - days * 86400
        os.utime(cache.folder(key) / "record.json", (when, when))
    return cache


def gone(cache: EngineCache, **limits: Any) -> list[str]:
    removed, _ = sweep(cache, **limits)
    return [item.path.name[0] for item in removed]


def test_gc_by_age_size_and_version(tmp_path: Path) -> None:
    assert gone(filled(tmp_path / "a")) == []
    assert gone(filled(tmp_path / "b"), older_than_s=30 * 86400) == ["0"]
    assert gone(filled(tmp_path / "c"), tensorrt="10.14") == ["1", "2"]
    cache = filled(tmp_path / "d")
    sizes = [entry.size_bytes for entry in entries(cache)]
    assert gone(cache, max_bytes=sum(sizes)) == []
    assert gone(cache, max_bytes=sum(sizes[1:])) == ["0"]
    assert gone(cache, max_bytes=sizes[2] - 1) == ["1", "2"]
    assert entries(cache) == []
    assert [path for path in cache.root.rglob("*") if path.is_file()] == []


def test_gc_of_timing_caches(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    old, new = (cache.timing_cache(version, "9.0") for version in ("10.3.0.26", "10.14.1.48"))
    old.parent.mkdir()
    for path in (old, new, old.with_name(f".{old.name}.lock")):
        path.write_bytes(b"timings")
    assert gone(cache, tensorrt="10.3") == ["0", "t"]
    assert sorted(path.name for path in old.parent.iterdir()) == [new.name]
    os.utime(new, (0, 0))
    assert gone(cache, older_than_s=30 * 86400, dry_run=True) == ["t"]
    assert gone(cache, older_than_s=30 * 86400) == ["t"]
    assert list(old.parent.iterdir()) == []


def test_gc_says_what_it_would_do(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    before = listing(cache.root)
    assert gone(cache, max_bytes=0, dry_run=True) == ["0", "1", "2"]
    assert listing(cache.root) == before


def test_gc_leaves_what_is_in_use(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    with cache.in_use("11" * 32), key_lock(cache.lock_path("22" * 32)):
        removed, busy = sweep(cache, max_bytes=0)
    assert [item.path.name[0] for item in removed] == ["0"]
    assert busy == ["11" * 32, "22" * 32]
    assert gone(cache, max_bytes=0) == ["1", "2"]


def test_gc_removes_damaged_entries(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    (cache.folder("11" * 32) / "record.json").unlink()
    assert gone(cache) == ["1"]


def test_finding_an_engine_counts_as_use(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    assert cache.find("00" * 32) is not None
    assert gone(cache, older_than_s=30 * 86400) == []
    assert [entry.key[0] for entry in entries(cache)] == ["1", "2", "0"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = filled(tmp_path)
    assert main(["engines", "ls", "--cache", str(cache.root)]) == 0
    out = capsys.readouterr().out
    assert "000000000000  net/1  10.3.0.26   sm_90  fp16" in out and "40 d" in out
    assert main(["engines", "ls", "--cache", str(cache.root), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["engines"]
    assert [e["tensorrt"] for e in listed] == ["10.3.0.26", "10.14.1.48", "10.14.1.48"]
    assert listed[0]["unused_s"] > 39 * 86400 and listed[0]["size_bytes"] > 2000
    assert main(["engines", "gc", "--cache", str(cache.root), "--older-than", "30d", "--dry-run"]) == 0
    assert "would remove" in capsys.readouterr().out
    assert main(["engines", "gc", "--cache", str(cache.root), "--older-than", "30d"]) == 0
    assert "unused for 40.0 days" in capsys.readouterr().out
    assert main(["engines", "gc", "--cache", str(cache.root), "--max-bytes", "1k", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 2
    assert main(["engines", "ls", "--cache", str(tmp_path / "none")]) == 0
    assert "no engines in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["gc", "--older-than", "30"], "argument --older-than: given '30'; expected an age such as 30d"),
        (["gc", "--older-than", "-1d"], "argument --older-than"),
        (["gc", "--max-bytes", "lots"], "argument --max-bytes: given 'lots'; expected a size"),
        (["gc", "--tensorrt", "ten"], "argument --tensorrt: given 'ten'; expected a version"),
        (["rm"], "argument ls|gc: invalid choice: 'rm'"),
        ([], "the following arguments are required: ls|gc"),
        (["ls", "--cache", ""], "argument --cache: given ''"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main(["engines", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
