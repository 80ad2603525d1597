"""The main job on real weights and real photographs: what the server answers is what PyTorch answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tritonstack import Client
from tritonstack_deploy.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("efficientnet_lite0", "sentence_embedding")
pytestmark = pytest.mark.slow


def tritonstack(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "tritonstack", *arguments], capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    repository = tmp_path_factory.mktemp("models")
    for model in MODELS:
        report = json.loads(
            tritonstack(
                "export",
                str(ROOT / f"examples/{model}/spec.yaml"),
                *("--precision", "fp32", "--repository", str(repository), "--json"),
            )
        )
        assert report["version"] == 1
    check = json.loads(tritonstack("check", str(repository), "--strict", "--json"))
    assert check["passed"] and check["warnings"] == 0
    with EmbeddedServer(repository) as running:
        yield running


def photos() -> list[Path]:
    spec = find_spec("foolbox")
    assert spec is not None and spec.submodule_search_locations
    return sorted((Path(spec.submodule_search_locations[0]) / "data").glob("imagenet_*.jpg"))


def classify(url: str) -> list[dict[str, object]]:
    output = tritonstack(
        "infer", "efficientnet_lite0", "--url", url, "--json", "--top", "5", "--image", *map(str, photos())
    )
    images: list[dict[str, object]] = json.loads(output)["images"]
    return images


def test_photographs_are_classified_alike_over_both_protocols(server: EmbeddedServer) -> None:
    over_grpc, over_http = classify(server.grpc_url), classify(server.http_url)
    assert over_grpc == over_http
    assert len(over_grpc) == 20
    truth = [int(path.stem.rsplit("_", 1)[1]) for path in photos()]
    top = [[c["index"] for c in image["classes"]] for image in over_grpc]  # type: ignore[attr-defined]
    # 18 of 20 is what the network scores on these photos in PyTorch; a wrong normalisation loses three of them.
    assert sum(t[0] == want for t, want in zip(top, truth, strict=True)) == 18
    assert sum(want in t for t, want in zip(top, truth, strict=True)) >= 19


def load_example(model: str) -> ModuleType:
    spec = spec_from_file_location(f"example_{model}", ROOT / f"examples/{model}/model.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_embeddings_match_pytorch(server: EmbeddedServer, protocol: str) -> None:
    import torch

    ids = np.random.default_rng(0).integers(1, 30000, (3, 17))
    mask = np.ones_like(ids)
    mask[1, 9:] = 0
    module = load_example("sentence_embedding").build().eval()
    with torch.no_grad():
        want = module(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    with Client(server.grpc_url if protocol == "grpc" else server.http_url) as client:
        result = client.infer("sentence_embedding", {"input_ids": ids, "attention_mask": mask})
    np.testing.assert_allclose(result["embedding"], want, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(result["embedding"], axis=1), 1, atol=1e-5)


def test_text_client_of_the_example(server: EmbeddedServer) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples/sentence_embedding/client.py"), "--url", server.grpc_url],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    rows = [[float(word) for word in line.split()[-4:]] for line in result.stdout.splitlines()[2:]]
    # Sentences 1 and 2 mean the same, as do 3 and 4; across the pairs there is nothing in common.
    assert min(rows[0][1], rows[2][3]) > 0.5 > 0.2 > max(rows[0][2], rows[0][3], rows[1][2], rows[1][3])
