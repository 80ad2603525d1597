"""E27: a timing cache that is damaged, foreign, empty or unwritable is a warning and a fresh start, never a failure."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import engine_models as models
import pytest

from tritonstack_export.engine.build import build
from tritonstack_export.engine.home import RtxHome
from tritonstack_export.engine.settings import Bounds, BuildSettings

SETTINGS = BuildSettings(({"x": Bounds((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))},))


def place(kind: str, folder: Path) -> Path:
    path = folder / "timing.cache"
    if kind == "random":
        path.write_bytes(hashlib.sha256(b"x").digest() * 128)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "below a file":
        path.write_bytes(b"")
        return path / "timing.cache"
    return path


@pytest.mark.parametrize("kind", ["random", "empty", "absent", "folder", "below a file"])
def test_no_timing_cache_makes_a_build_fail(tmp_path: Path, rtx: RtxHome, kind: str) -> None:
    onnx = models.save(models.conv(), tmp_path / "model.onnx")
    path = place(kind, tmp_path)
    outcome = build(onnx, replace(SETTINGS, timing_cache=path), home=rtx, compute_capabilities=["8.6"])
    assert outcome.plan_bytes > 1000
    said = " ".join(outcome.warnings)
    if kind in ("folder", "below a file"):
        assert "timing cache" in said and "cannot be" in said
    else:
        # RTX keeps an empty cache; it is written all the same, whole, and without leftovers.
        assert path.stat().st_size > 0
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".timing.cache.") and p.suffix != ".lock"]


STAND_IN = """
import sys, time
from pathlib import Path
from tritonstack_export.engine.worker.timing_cache import TimingCache

class Cache:
    def __init__(self, content): self.lines = set(content.split())
    def serialize(self): return b"\\n".join(sorted(self.lines))
    def combine(self, other, ignore_mismatch):
        self.lines |= other.lines
        return True
class Config:
    gpu, cache = b"sm90", None
    def create_timing_cache(self, content):
        if content == b"broken": raise RuntimeError("deserialization failed")
        return Cache(content)
    def set_timing_cache(self, cache, ignore_mismatch):
        assert not ignore_mismatch
        if any(not line.startswith(self.gpu) for line in cache.lines): return False
        self.cache = cache
        return True
    def get_timing_cache(self): return self.cache
class Events:
    def send(self, event, **fields): print(fields["text"])

config = Config()
cache = TimingCache(Path(sys.argv[1]), config, Events())
time.sleep(0.3)
config.cache.lines |= {b"sm90:" + word.encode() for word in sys.argv[2:]}
cache.save()
"""


def run(path: Path, *words: str) -> subprocess.Popen[str]:
    """A build's handling of its timing cache; the cache itself is a set of words, as TensorRT's needs a GPU."""
    return subprocess.Popen(
        [sys.executable, "-c", STAND_IN, str(path), *words], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def test_builds_at_the_same_time_add_up(tmp_path: Path) -> None:
    path = tmp_path / "timing.cache"
    processes = [run(path, f"kernel{number}") for number in range(6)]
    for process in processes:
        assert process.communicate(timeout=60)[0] == ""
    assert path.read_bytes().split() == [b"sm90:kernel%d" % number for number in range(6)]


@pytest.mark.parametrize("content", [b"sm75:kernel", b"broken"])
def test_a_cache_of_another_gpu_or_a_broken_one_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "timing.cache"
    path.write_bytes(content)
    said = run(path, "new").communicate(timeout=60)[0]
    assert "is no timing cache of this TensorRT and GPU (or it is damaged); a fresh one is started" in said
    assert path.read_bytes() == b"sm90:new"


def test_nothing_promises_the_same_bytes_twice() -> None:
    """Timings differ from run to run, so engines do; the record keeps the digest of the one that was built."""
    root = Path(__file__).resolve().parents[3]
    texts = [*(root / "export/tritonstack_export/engine").rglob("*.py"), root / "docs" / "engines.md"]
    for path in texts:
        text = path.read_text().lower()
        assert "deterministic engine" not in text and "reproducible engine" not in text
    assert "not bit-identical" in (root / "docs" / "engines.md").read_text()
