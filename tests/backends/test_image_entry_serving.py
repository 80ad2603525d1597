"""`serve` and the compiled backend: found where it was built, named by hand, or told that it is missing."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_backend_models import needs_backend
from serve_process import Serve

from tritonstack.command import main
from tritonstack.errors import UsageError
from tritonstack_deploy.embedded import EmbeddedServer, built_backends
from tritonstack_deploy.embedded.built_backends import backend_arguments, missing_backends

PREPROCESS = """\
backend: "image_preprocess"
max_batch_size: 4
input { name: "image_bytes" data_type: TYPE_STRING dims: [1] }
output { name: "preprocessed" data_type: TYPE_FP32 dims: [3, 8, 8] }
parameters { key: "resize" value { string_value: "exact" } }
parameters { key: "height" value { string_value: "8" } }
parameters { key: "width" value { string_value: "8" } }
"""
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 4
input { name: "image_bytes" data_type: TYPE_STRING dims: [1] }
output { name: "pixels" data_type: TYPE_FP32 dims: [3, 8, 8] }
ensemble_scheduling { step {
  model_name: "pictures"
  model_version: -1
  input_map { key: "image_bytes" value: "image_bytes" }
  output_map { key: "preprocessed" value: "pixels" }
} }
"""
PYTHON = """\
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", value + 1)]) for value in x]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    for name, text in {"pictures": PREPROCESS, "whole": ENSEMBLE, "adder": PYTHON}.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    (root / "adder" / "1" / "model.py").write_text(MODEL)
    return root


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As on a machine where nobody ran `make backend`."""
    monkeypatch.setattr(built_backends, "_PLACES", (tmp_path / "nowhere",))
    yield


def folders(repository: Path) -> dict[str, Path]:
    return {path.name: path for path in repository.iterdir()}


def test_models_and_ensembles_that_wait_for_it_are_named(repository: Path) -> None:
    missing = missing_backends(folders(repository), [])
    assert [(found.model, found.backend, found.through) for found in missing] == [
        ("pictures", "image_preprocess", None),
        ("whole", "image_preprocess", "pictures"),
    ]
    assert "make backend" in missing[0].next_step
    assert missing_backends(folders(repository), ["image_preprocess"]) == []


def test_a_model_that_brings_its_library_waits_for_nothing(repository: Path) -> None:
    (repository / "pictures" / "1" / "libtriton_image_preprocess.so").touch()
    assert missing_backends(folders(repository), []) == []


def test_a_config_that_cannot_be_read_is_left_to_others(repository: Path) -> None:
    (repository / "adder" / "config.pbtxt").write_text("backend: ")
    assert [found.model for found in missing_backends(folders(repository), [])] == ["pictures", "whole"]


@pytest.mark.usefixtures("not_built")
def test_the_others_are_served(repository: Path) -> None:
    server = EmbeddedServer(repository)
    assert [found.model for found in server.left_out] == ["pictures", "whole"]
    with server:
        assert [(state.name, state.ready) for state in server.model_states()] == [("adder", True)]


@pytest.mark.usefixtures("not_built")
@pytest.mark.parametrize("wanted", ["pictures", "whole"])
def test_asked_for_by_name_it_is_an_error(repository: Path, wanted: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(repository), "--model", wanted]) == 1
    message = capfd.readouterr().err
    assert f"model {wanted!r} needs the backend 'image_preprocess'" in message and "make backend" in message


@pytest.mark.usefixtures("not_built")
def test_nothing_left_to_serve_is_an_error(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(repository / "adder")
    assert main(["serve", str(repository)]) == 1
    assert "model 'pictures' needs the backend" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("image_preprocess", "expected NAME=PATH"),
        ("image_preprocess=", "expected NAME=PATH"),
        ("a/b=x.so", "expected NAME=PATH"),
        ("python=x.so", "built in"),
        ("image_preprocess=/nonexistent/x.so", "no library there"),
        ("image_preprocess=config.pbtxt", "no library there"),
    ],
)
def test_a_wrong_backend_flag_is_wrong_usage(
    repository: Path, word: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(repository), "--backend", word]) == 2
    message = capfd.readouterr().err.strip().splitlines()[-1]
    assert "--backend" in message and words in message


def test_another_name_than_triton_looks_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.so").touch()
    with pytest.raises(UsageError, match=r"libtriton_image_preprocess\.so"):
        built_backends.built_backends({"image_preprocess": tmp_path / "mine.so"})


def test_nvjpeg_of_a_package_is_passed_on(tmp_path: Path) -> None:
    library = tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libnvjpeg.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    places = [str(tmp_path / "other"), str(tmp_path / "site")]
    flag = f"--backend-config=image_preprocess,nvjpeg_path={library}"
    assert backend_arguments(["image_preprocess"], places) == [flag]
    assert backend_arguments(["image_preprocess"], places[:1]) == []
    assert backend_arguments([], places) == []


@needs_backend
def test_named_by_file_or_by_folder(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = built_backends.built_backends()["image_preprocess"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(library, elsewhere / library.name)
    monkeypatch.setattr(built_backends, "_PLACES", ())
    for path in (elsewhere, elsewhere / library.name):
        assert built_backends.built_backends({"image_preprocess": path}) == {
            "image_preprocess": elsewhere / library.name
        }
    with EmbeddedServer(repository, backends={"image_preprocess": elsewhere / library.name}) as server:
        assert all(state.ready for state in server.model_states())
        assert not server.left_out


@needs_backend
def test_serve_finds_what_was_built(repository: Path) -> None:
    serve = Serve([str(repository), "--port-base", "0", "--json"])
    try:
        ready = serve.wait_ready()["models"]
        assert {model["name"]: model["ready"] for model in ready} == {"adder": True, "pictures": True, "whole": True}
    finally:
        assert serve.finish(signal.SIGINT) == 0
