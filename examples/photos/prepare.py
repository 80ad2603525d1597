"""Fetch the photographs that the examples are calibrated and evaluated on.

    python examples/photos/prepare.py [--out .cache/photos] [--deb FILE ...]

Writes evaluation/ (244 pictures), labels.json (accepted ImageNet classes of each) and calibration/ (pictures without
labels, none of which looks like one of the evaluation's). Nothing is installed: two Debian packages are downloaded and
unpacked, and 20 pictures are read from the Python package foolbox. The pictures' licences are those of the packages.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from resource_archive import read_archive

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parent.parent / ".cache" / "photos"
GCOMPRIS = "gcompris-qt-data=3.1-2"
TUXPAINT = "tuxpaint-stamps-default=2022.06.04-1"
FORMAT = 1
"""Counted up when what is written changes, so that older folders are made again."""

# Folders of photographs, as far as they hold no drawings.
GCOMPRIS_PHOTOS = (
    "erase/resource/",
    "explore_world_animals/resource/",
    "explore_farm_animals/resource/",
    "explore_monuments/resource/",
    "categorization/resource/images/tools/",
    "categorization/resource/images/others/",
    "categorization/resource/images/renewable/",
    "categorization/resource/images/fishes/",
)
TUXPAINT_PHOTOS = ("animals/", "food/", "hobbies/", "household/", "plants/", "sports/", "vehicles/")
SMALLEST_SIDE = 100
MARGIN = 0.15
NEAR = 8
"""Pictures whose 64-bit difference hashes differ in at most this many bits count as the same motif."""


class Problem(Exception):
    """What is told to the user in one line."""


def main() -> int:
    """Prepare the folder unless it is there already; 1 when that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write (default: .cache/photos)")
    parser.add_argument("--deb", type=Path, action="append", default=[], help="a .deb downloaded beforehand (twice)")
    options = parser.parse_args()
    try:
        if up_to_date(options.out):
            print(f"{options.out} is complete", file=sys.stderr)
            return 0
        prepare(options.out, options.deb)
    except (Problem, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def manifest() -> list[dict[str, Any]]:
    """The labelled pictures: package, path inside it, sha256 of the file, accepted classes."""
    return list(json.loads((HERE / "labels.json").read_text("utf-8")))


def wanted_key() -> str:
    """Changes with the manifest and with the format of the folder."""
    return hashlib.sha256(b"%d" % FORMAT + (HERE / "labels.json").read_bytes()).hexdigest()


def up_to_date(out: Path) -> bool:
    """Whether the folder was written whole by this version."""
    try:
        return (out / ".complete").read_text() == wanted_key()
    except OSError:
        return False


def prepare(out: Path, debs: list[Path]) -> None:
    """Make the folder beside its place and rename it, so that it is either whole or not there."""
    if out.exists() and any(out.iterdir()) and not (out / ".complete").exists():
        raise Problem(f"{out} is not empty and was not made by this script: choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".photos-", dir=out.parent) as temporary:
        work = Path(temporary)
        roots = {package: unpack(package, debs, work) for package in (GCOMPRIS, TUXPAINT)}
        stage = work / "stage"
        count = write_pictures(stage, roots)
        (stage / ".complete").write_text(wanted_key())
        if out.exists():
            out.rename(work / "old")
        stage.rename(out)
    print(f"{out}: {count[0]} labelled pictures, {count[1]} for calibration", file=sys.stderr)


def unpack(package: str, debs: list[Path], work: Path) -> Path:
    """The files of a Debian package, from a given .deb or downloaded; nothing is installed."""
    name, _, version = package.partition("=")
    given = next((deb for deb in debs if deb.name.startswith(f"{name}_")), None)
    if given is None:
        given = download(package, work)
    elif f"_{version}_" not in given.name:
        raise Problem(f"--deb {given}: expected version {version}, the one that the labels belong to")
    if shutil.which("dpkg-deb") is None:
        raise Problem("dpkg-deb, which unpacks Debian packages, is not installed: apt-get install dpkg")
    target = work / name
    result = subprocess.run(["dpkg-deb", "-x", str(given), str(target)], capture_output=True, text=True)
    if result.returncode:
        raise Problem(f"{given} cannot be unpacked: {(result.stderr.strip().splitlines() or ['dpkg-deb failed'])[-1]}")
    return target


def download(package: str, work: Path) -> Path:
    """`apt-get download`, which needs package lists but no root."""
    name = package.partition("=")[0]
    line = f"apt-get update && apt-get download {GCOMPRIS} {TUXPAINT}"
    hint = f"run `{line}` and give the files with --deb"
    if shutil.which("apt-get") is None:
        raise Problem(f"{package} is a Debian package and there is no apt-get here: {hint} (on a Debian 12)")
    print(f"downloading {package}", file=sys.stderr)
    result = subprocess.run(["apt-get", "-qq", "download", package], cwd=work, capture_output=True, text=True)
    found = sorted(work.glob(f"{name}_*.deb"))
    if result.returncode or not found:
        last = (result.stderr.strip().splitlines() or ["no such file"])[-1]
        raise Problem(f"{package} cannot be downloaded ({last}): {hint}")
    return found[0]


def write_pictures(stage: Path, roots: dict[str, Path]) -> tuple[int, int]:
    """Write evaluation/, labels.json and calibration/; returns how many pictures are in each."""
    accepted = {(entry["package"], entry["path"]): entry for entry in manifest()}
    labels: dict[str, list[int]] = {}
    hashes: list[int] = []
    rest: list[tuple[str, bytes, Image.Image]] = []
    (stage / "evaluation").mkdir(parents=True)
    (stage / "calibration").mkdir()
    for package, path, content in pictures(roots):
        entry = accepted.pop((package, path), None)
        name = f"{package.split(':')[1].split('=')[0].split('-')[0]}_{path.replace('/', '_')}"
        if entry is None:
            if package != "pypi:foolbox==3.3.4":
                rest.append((name, content, compose(package, content)))
            continue
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise Problem(f"{path} of {package} is not the picture that the labels were made for")
        picture = compose(package, content)
        save(stage / "evaluation" / name, package, content, picture)
        labels[name] = entry["accept"]
        hashes.append(difference_hash(picture))
    if accepted:
        raise Problem(f"{len(accepted)} labelled pictures are missing, such as {next(iter(accepted))}")
    (stage / "labels.json").write_text(json.dumps(labels, indent=1, sort_keys=True) + "\n")
    written = 0
    for name, content, picture in sorted(rest, key=lambda entry: entry[0]):
        own = difference_hash(picture)
        if min(picture.size) < SMALLEST_SIDE or any((own ^ other).bit_count() <= NEAR for other in hashes):
            continue
        hashes.append(own)
        package = "deb:tuxpaint" if name.startswith("tuxpaint") else "deb:gcompris"
        save(stage / "calibration" / name, package, content, picture)
        written += 1
    return len(labels), written


def pictures(roots: dict[str, Path]) -> Iterator[tuple[str, str, bytes]]:
    """(package, path, content) of every photograph in the three packages, in a fixed order."""
    for archive in sorted((roots[GCOMPRIS] / "usr/share/gcompris-qt/rcc").glob("*.rcc")):
        if archive.stem in {prefix.partition("/")[0] for prefix in GCOMPRIS_PHOTOS}:
            for path, content in sorted(read_archive(archive)):
                path = path.removeprefix("gcompris/src/activities/")
                if path.startswith(GCOMPRIS_PHOTOS) and path.endswith(".webp"):
                    yield f"deb:{GCOMPRIS}", path, content
    stamps = roots[TUXPAINT] / "usr/share/tuxpaint/stamps"
    labelled = {entry["path"] for entry in manifest()}
    for file in sorted(stamps.rglob("*.png")):
        path = file.relative_to(stamps).as_posix()
        if path in labelled or (path.startswith(TUXPAINT_PHOTOS) and "cartoon" not in path and "toys" not in path):
            yield f"deb:{TUXPAINT}", path, file.read_bytes()
    spec = find_spec("foolbox")
    if spec is None or not spec.submodule_search_locations:
        raise Problem("the Python package foolbox is missing: pip install --no-deps foolbox==3.3.4")
    for file in sorted((Path(spec.submodule_search_locations[0]) / "data").glob("imagenet_*.jpg")):
        yield "pypi:foolbox==3.3.4", f"foolbox/data/{file.name}", file.read_bytes()


def compose(package: str, content: bytes) -> Image.Image:
    """8-bit RGB. Cut-outs of tuxpaint are laid on a white square with a margin, so that a crop does not cut them."""
    with Image.open(io.BytesIO(content)) as opened:
        if not package.startswith("deb:tuxpaint"):
            return opened.convert("RGB")
        cut = opened.convert("RGBA")
    side = round(max(cut.size) * (1 + 2 * MARGIN))
    ground = Image.new("RGBA", (side, side), (255, 255, 255, 255))
    ground.alpha_composite(cut, ((side - cut.width) // 2, (side - cut.height) // 2))
    return ground.convert("RGB")


def save(path: Path, package: str, content: bytes, picture: Image.Image) -> None:
    """The file as it came, or where it was composed a PNG of it."""
    if package.startswith("deb:tuxpaint"):
        picture.save(path)
    else:
        path.write_bytes(content)


def difference_hash(picture: Image.Image) -> int:
    """64 bits, one per pair of neighbours in an 8 × 9 grey thumbnail: whether it gets brighter to the right."""
    small = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = (small[:, 1:] > small[:, :-1]).reshape(-1)
    return int("".join("1" if bit else "0" for bit in bits), 2)


if __name__ == "__main__":
    sys.exit(main())
