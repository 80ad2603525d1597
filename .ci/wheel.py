"""Builds the wheel of the project, with the compiled backend inside where `make backend` was run.

    .ci/wheel.py [--out dist] [--backend FILE]

Without the library the wheel is pure Python, for any platform. With it the wheel is for Linux on x86_64: glibc is all
the library needs, and `tritonstack serve` finds it in the installed package.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "libtriton_image_preprocess.so"
BUILT = ROOT / "build" / "backends" / "image_preprocess" / NAME
PLACE = f"tritonstack_deploy/_backends/image_preprocess/{NAME}"


def build_pure(folder: Path) -> Path:
    line = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "-w", str(folder)]
    subprocess.run([*line, "--build-constraint", str(ROOT / "constraints.txt"), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def with_library(wheel: Path, library: Path, out: Path) -> Path:
    """The wheel and the library as a wheel of this platform, whose name is returned."""
    tag = f"linux_{platform.machine()}"
    target = out / wheel.name.replace("-none-any.whl", f"-none-{tag}.whl")
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as packed:
        record = next(name for name in source.namelist() if name.endswith(".dist-info/RECORD"))
        rows: list[tuple[str, str, int | str]] = []

        def add(info: zipfile.ZipInfo, data: bytes) -> None:
            packed.writestr(info, data, zipfile.ZIP_DEFLATED)
            rows.append((info.filename, digest(data), len(data)))

        for info in source.infolist():
            data = source.read(info)
            if info.filename == record:
                continue
            if info.filename.endswith(".dist-info/WHEEL"):
                text = data.decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
                data = text.replace("-none-any", f"-none-{tag}").encode()
            add(info, data)
        entry = zipfile.ZipInfo(PLACE, date_time=source.getinfo(record).date_time)
        entry.external_attr = 0o100755 << 16
        add(entry, library.read_bytes())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
        packed.writestr(source.getinfo(record), text.getvalue(), zipfile.ZIP_DEFLATED)
    partial.replace(target)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the wheel, with the compiled backend where it is built.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel (dist)")
    parser.add_argument(
        "--backend", type=Path, default=BUILT, help="the library; nothing is packed where it is missing"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_pure(Path(folder))
        if options.backend.is_file():
            target = with_library(wheel, options.backend, options.out)
        else:
            print(f"wheel: without the backend, as {options.backend} is not there (make backend)", file=sys.stderr)
            target = options.out / wheel.name
            target.write_bytes(wheel.read_bytes())
    print(target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
