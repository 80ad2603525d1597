"""The backend's own C++ tests, and its decoders fed with mutated pictures: as built, and under the sanitizers.

`SANITIZE=address,undefined make backend` and `SANITIZE=thread make backend` make the sanitized programs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_seeds import seeds, write
from image_backend_models import LIBRARY, needs_library

SWITCH = "TRITONSTACK_REQUIRE_SANITIZERS"
PLAIN = LIBRARY.parent
SANITIZED = PLAIN.with_name(PLAIN.name + "-sanitized")
THREAD = PLAIN.with_name(PLAIN.name + "-thread")
FUZZ = Path(__file__).resolve().parents[2] / "backends" / "image_preprocess" / "fuzz"
RUNS = 100_000
GUIDED_RUNS = 30_000


def needs_build(folder: Path, line: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not (folder / "tests" / "core_tests").is_file() and os.environ.get(SWITCH) != "1",
        reason=f"needs `{line}`; {SWITCH}=1 turns this skip into a failure",
    )


NEEDS = {
    PLAIN: needs_library,
    SANITIZED: needs_build(SANITIZED, "SANITIZE=address,undefined make backend"),
    THREAD: needs_build(THREAD, "SANITIZE=thread make backend"),
}


def builds(*folders: Path) -> list[object]:
    return [pytest.param(folder, id=folder.name, marks=NEEDS[folder]) for folder in folders]


@pytest.mark.parametrize("folder", builds(PLAIN, SANITIZED, THREAD))
def test_core_tests_pass(folder: Path) -> None:
    done = subprocess.run([folder / "tests" / "core_tests"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("folder", builds(SANITIZED, THREAD))
def test_sanitized_builds_are_sanitized(folder: Path) -> None:
    listing = subprocess.run(["nm", folder / "libimage_core.a"], capture_output=True, text=True, check=True).stdout
    assert f"__{'tsan' if folder == THREAD else 'asan'}_init" in listing


@pytest.mark.slow
@pytest.mark.parametrize("folder", builds(PLAIN, SANITIZED))
def test_mutated_pictures_neither_crash_nor_leak(folder: Path, tmp_path: Path) -> None:
    write(tmp_path, with_settings=False)
    fuzzer = folder / "fuzz" / "decode_fuzzer"
    done = subprocess.run([fuzzer, tmp_path, str(RUNS)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-5000:]
    assert f"{RUNS} inputs from {len(seeds())} seeds" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang++") is None, reason="libFuzzer comes with clang (apt-get install clang)")
def test_mutations_guided_by_coverage_neither_crash_nor_leak() -> None:
    done = subprocess.run(
        [FUZZ / "run.sh", "--runs", str(GUIDED_RUNS)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    executed = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    assert executed and int(executed[1]) >= GUIDED_RUNS, done.stdout


@pytest.mark.parametrize("words", [[], ["--runs"], ["--runs", "many"], ["--runs", "1", "--speed", "9"]])
def test_the_fuzzing_script_tells_how_it_is_called(words: list[str]) -> None:
    done = subprocess.run([FUZZ / "run.sh", *words], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2 and "usage: run.sh --runs N" in done.stderr
