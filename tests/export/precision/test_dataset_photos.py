"""The preparation of the examples' photographs: real archives and packages made here, and every refusal."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "photos"
PREPARE = EXAMPLES / "prepare.py"


def load(name: str) -> Any:
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location(f"photos_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(EXAMPLES))


def resource_archive(files: dict[str, bytes], *, version: int = 3) -> bytes:
    """A Qt resource archive of one folder `pictures`; every second file is compressed."""
    names, blobs, offsets = b"", b"", {}
    for name in ("pictures", *files):
        offsets[name] = len(names)
        names += struct.pack(">HI", len(name), 0) + name.encode("utf-16-be")
    extra = b"" if version == 1 else b"\0" * 8
    nodes = [
        struct.pack(">IHII", 0, 2, 1, 1) + extra,
        struct.pack(">IHII", offsets["pictures"], 2, len(files), 2) + extra,
    ]
    for number, (name, content) in enumerate(files.items()):
        packed = struct.pack(">I", len(content)) + zlib.compress(content) if number % 2 else content
        nodes.append(struct.pack(">IHHHI", offsets[name], number % 2, 0, 0, len(blobs)) + extra)
        blobs += struct.pack(">I", len(packed)) + packed
    tree = b"".join(nodes)
    start = 24
    header = b"qres" + struct.pack(">IIII", version, start, start + len(tree) + len(names), start + len(tree))
    return header.ljust(start, b"\0") + tree + names + blobs


@pytest.mark.parametrize("version", [1, 2, 3])
def test_resource_archives(version: int, tmp_path: Path) -> None:
    files = {"a.webp": b"first", "ä.png": bytes(5000), "empty": b""}
    (tmp_path / "x.rcc").write_bytes(resource_archive(files, version=version))
    found = dict(load("resource_archive").read_archive(tmp_path / "x.rcc"))
    assert found == {f"pictures/{name}": content for name, content in files.items()}
    (tmp_path / "y.rcc").write_bytes(b"PK\3\4")
    with pytest.raises(ValueError, match=r"y\.rcc is no Qt resource archive"):
        list(load("resource_archive").read_archive(tmp_path / "y.rcc"))


def run(*flags: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path is not None else {})}
    return subprocess.run(
        [sys.executable, str(PREPARE), *flags], capture_output=True, text=True, env=environment, timeout=60
    )


def deb(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    root = folder / name
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@b.c>\nDescription: pictures\n"
    for path, content in {**files, "DEBIAN/control": control.encode()}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    target = folder / f"{name}_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--build", "-Znone", str(root), str(target)], check=True, capture_output=True)
    return target


def png(seed: int, size: tuple[int, int] = (160, 120), *, alpha: bool = False) -> bytes:
    import io

    channels = 4 if alpha else 3
    small = np.random.default_rng(seed).integers(0, 256, (9, 12, channels)).astype(np.uint8)
    image = Image.fromarray(small).resize(size, Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG" if alpha else "WEBP", **({} if alpha else {"lossless": True}))
    return buffer.getvalue()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real script with two small real packages and a manifest for them."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    module = load("prepare")
    photos = {f"{n}.webp": png(n) for n in range(4)}
    photos["again.webp"] = png(0, (320, 240))
    archive = resource_archive(photos).replace("pictures".encode("utf-16-be"), "resource".encode("utf-16-be"))
    stamps = {f"usr/share/tuxpaint/stamps/animals/{n}.png": png(10 + n, alpha=True) for n in range(3)}
    stamps["usr/share/tuxpaint/stamps/animals/cartoon/9.png"] = png(19, alpha=True)
    stamps["usr/share/tuxpaint/stamps/symbols/8.png"] = png(18, alpha=True)
    debs = [
        deb(tmp_path, "gcompris-qt-data", "3.1-2", {"usr/share/gcompris-qt/rcc/erase.rcc": archive}),
        deb(tmp_path, "tuxpaint-stamps-default", "2022.06.04-1", stamps),
    ]
    (tmp_path / "home").mkdir()

    def labelled(package: str, path: str, content: bytes) -> dict[str, Any]:
        return {"package": package, "path": path, "sha256": hashlib.sha256(content).hexdigest(), "accept": [1, 2]}

    manifest = [
        labelled(f"deb:{module.GCOMPRIS}", "resource/0.webp", photos["0.webp"]),
        labelled(f"deb:{module.TUXPAINT}", "animals/0.png", stamps["usr/share/tuxpaint/stamps/animals/0.png"]),
    ]
    (tmp_path / "home" / "labels.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(module, "HERE", tmp_path / "home")
    monkeypatch.setattr(module, "GCOMPRIS_PHOTOS", ("resource/", "erase/"))
    monkeypatch.setattr(module, "find_spec", lambda _: importlib.util.spec_from_file_location(
        "foolbox", tmp_path / "foolbox.py", submodule_search_locations=[str(tmp_path / "foolbox")]))  # fmt: skip
    module.debs = debs
    return module


def test_pictures_are_labelled_composed_and_kept_apart(small: Any, tmp_path: Path) -> None:
    out = tmp_path / "photos"
    small.prepare(out, small.debs)
    labels = json.loads((out / "labels.json").read_text())
    assert labels == {"gcompris_resource_0.webp": [1, 2], "tuxpaint_animals_0.png": [1, 2]}
    assert {path.name for path in (out / "evaluation").iterdir()} == set(labels)
    # The same motif in another size is left out, as are drawings and what is no photograph's folder.
    assert {path.name for path in (out / "calibration").iterdir()} == {
        *(f"gcompris_resource_{n}.webp" for n in (1, 2, 3)), "tuxpaint_animals_1.png", "tuxpaint_animals_2.png"
    }  # fmt: skip
    with Image.open(out / "evaluation" / "tuxpaint_animals_0.png") as composed:
        assert composed.mode == "RGB"
        assert composed.size == (208, 208)
        assert composed.getpixel((0, 0)) == (255, 255, 255)
    assert small.up_to_date(out)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".photos-")]


def test_a_changed_manifest_makes_the_folder_anew(small: Any, tmp_path: Path) -> None:
    out = tmp_path / "photos"
    small.prepare(out, small.debs)
    manifest = json.loads((tmp_path / "home" / "labels.json").read_text())
    (tmp_path / "home" / "labels.json").write_text(json.dumps(manifest[:1]))
    assert not small.up_to_date(out)
    small.prepare(out, small.debs)
    assert len(json.loads((out / "labels.json").read_text())) == 1


def test_a_picture_that_is_not_the_labelled_one_is_refused(small: Any, tmp_path: Path) -> None:
    manifest = json.loads((tmp_path / "home" / "labels.json").read_text())
    manifest[0]["sha256"] = "0" * 64
    (tmp_path / "home" / "labels.json").write_text(json.dumps(manifest))
    with pytest.raises(small.Problem, match=r"resource/0\.webp .* is not the picture that the labels were made for"):
        small.prepare(tmp_path / "photos", small.debs)
    assert not (tmp_path / "photos").exists()


def test_a_missing_picture_is_named(small: Any, tmp_path: Path) -> None:
    manifest = json.loads((tmp_path / "home" / "labels.json").read_text())
    manifest.append({**manifest[0], "path": "resource/77.webp"})
    (tmp_path / "home" / "labels.json").write_text(json.dumps(manifest))
    with pytest.raises(small.Problem, match=r"1 labelled pictures are missing.*77\.webp"):
        small.prepare(tmp_path / "photos", small.debs)


def test_refusals_of_the_command(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    outcome = run("--out", str(full))
    assert (outcome.returncode, (full / "mine.txt").read_text()) == (1, "mine")
    assert "is not empty and was not made by this script" in outcome.stderr
    other = tmp_path / "gcompris-qt-data_4.0-1_all.deb"
    other.write_bytes(b"")
    outcome = run("--out", str(tmp_path / "new"), "--deb", str(other))
    assert outcome.returncode == 1
    assert "expected version 3.1-2" in outcome.stderr
    damaged = tmp_path / "gcompris-qt-data_3.1-2_all.deb"
    damaged.write_bytes(b"no archive")
    outcome = run("--out", str(tmp_path / "new"), "--deb", str(damaged))
    assert "cannot be unpacked" in outcome.stderr
    outcome = run("--out", str(tmp_path / "new"), path=str(tmp_path))
    assert outcome.returncode == 1
    assert "there is no apt-get here: run `apt-get update && apt-get download gcompris-qt-data=3.1-2" in outcome.stderr
    assert not (tmp_path / "new").exists()
    assert len(outcome.stderr.strip().splitlines()) == 1


def test_the_manifest_is_sound() -> None:
    entries = load("prepare").manifest()
    assert len(entries) == 244
    assert len({(entry["package"], entry["path"]) for entry in entries}) == 244
    assert len({entry["sha256"] for entry in entries}) == 244
    for entry in entries:
        assert len(entry["sha256"]) == 64
        assert entry["accept"]
        assert all(0 <= index < 1000 for index in entry["accept"])
