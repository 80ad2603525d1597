"""What `check` says of image_preprocess models, and that the backend refuses the same in the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from image_backend_models import needs_backend

from tritonstack.errors import RepositoryError
from tritonstack_export.check import CheckReport, check_repository

SOUND = {"resize": "exact", "height": "16", "width": "24"}
STRING = ("TYPE_STRING", [1])
MADE = ("TYPE_FP32", [3, 16, 24])


def config_text(
    parameters: dict[str, str], inputs: list[tuple[str, list[int]]], outputs: list[tuple[str, list[int]]]
) -> str:
    def tensors(kind: str, entries: list[tuple[str, list[int]]]) -> str:
        return "".join(
            f'{kind} {{ name: "{kind}{i}" data_type: {data_type} dims: {dims} }}\n'
            for i, (data_type, dims) in enumerate(entries)
        )

    return (
        'backend: "image_preprocess"\nmax_batch_size: 4\n'
        + tensors("input", inputs)
        + tensors("output", outputs)
        + "".join(
            f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
            for name, value in parameters.items()
        )
    )


def case(parameters: dict[str, str] | None = None, *, without: str = "", **tensors: Any) -> str:
    given = {**SOUND, **(parameters or {})}
    given.pop(without, None)
    return config_text(given, tensors.get("inputs", [STRING]), tensors.get("outputs", [MADE]))


GEOMETRY = ("TYPE_FP32", [8])
ACCEPTED = {
    "plain": case(),
    "geometry": case(outputs=[MADE, GEOMETRY]),
    "raw": case(inputs=[("TYPE_UINT8", [-1, -1, 3])]),
    "half": case(outputs=[("TYPE_FP16", [3, 16, 24])]),
    "brain": case(outputs=[("TYPE_BF16", [3, 16, 24])]),
    "bytes": case(outputs=[("TYPE_UINT8", [3, 16, 24])]),
    "open_dims": case(outputs=[("TYPE_FP32", [3, -1, -1])]),
    "channels_last": case({"layout": "NHWC"}, outputs=[("TYPE_FP32", [16, 24, 3])]),
    "shorter": config_text({"resize": "shorter", "height": "8"}, [STRING], [("TYPE_FP32", [3, -1, -1])]),
    "shorter_width": config_text(
        {"resize": "shorter", "height": "8", "width": "8"}, [STRING], [("TYPE_FP32", [3, -1, -1])]
    ),
    "nothing": config_text({}, [STRING], [("TYPE_FP32", [3, -1, -1])]),
    "everything": case(
        {
            "pad_value": "255", "crop_fraction": "0.875", "center_crop": "16x24", "interpolation": "nearest",
            "antialias": "false", "round_u8": "false", "channel_order": "BGR", "scale": "1e-2", "mean": "1, -2,.5",
            "std": "0.1,2e3,3.", "exif": "false", "gray": "refuse", "cmyk": "refuse", "alpha": "refuse",
            "max_pixels": "1", "max_bytes": "2147483647", "threads": "0", "on_gpu_output_unavailable": "fail",
            "tritonstack.note": "ours",
        }
    ),
}  # fmt: skip
REFUSED = {
    "mode": case({"resize": "squash"}),
    "height_zero": case({"height": "0"}),
    "height_large": case({"height": "16385"}),
    "height_text": case({"height": "16px"}),
    "height_half": case({"height": "16.5"}),
    "height_plus": case({"height": "+16"}),
    "height_empty": case({"height": ""}),
    "no_height": case(without="height"),
    "no_width": case(without="width"),
    "none_with_size": case({"resize": "none"}, without="width"),
    "shorter_two": case({"resize": "shorter"}),
    "pad": case({"pad_value": "256"}),
    "pad_negative": case({"pad_value": "-1"}),
    "fraction_zero": case({"crop_fraction": "0"}),
    "fraction_large": case({"crop_fraction": "1.01"}),
    "fraction_nan": case({"crop_fraction": "nan"}),
    "crop_form": case({"center_crop": "16"}),
    "crop_sign": case({"center_crop": "16X24"}),
    "crop_zero": case({"center_crop": "0x24"}),
    "crop_large": case({"center_crop": "17x24"}, outputs=[("TYPE_FP32", [3, 17, 24])]),
    "crop_shorter": config_text(
        {"resize": "shorter", "height": "8", "center_crop": "9x8"}, [STRING], [("TYPE_FP32", [3, 9, 8])]
    ),
    "filter": case({"interpolation": "lanczos"}),
    "flag": case({"antialias": "True"}),
    "flag_number": case({"round_u8": "1"}),
    "order": case({"channel_order": "rgb"}),
    "scale_zero": case({"scale": "0"}),
    "scale_infinite": case({"scale": "inf"}),
    "scale_beyond": case({"scale": "1e39"}),
    "mean_two": case({"mean": "1,2"}),
    "mean_four": case({"mean": "1,2,3,4"}),
    "mean_text": case({"mean": "1,2,x"}),
    "std_zero": case({"std": "1,0,1"}),
    "layout": case({"layout": "CHW"}),
    "gray": case({"gray": "drop"}),
    "cmyk": case({"cmyk": "drop"}),
    "alpha": case({"alpha": "blend"}),
    "pixels": case({"max_pixels": "0"}),
    "bytes": case({"max_bytes": "2147483648"}),
    "threads": case({"threads": "-1"}),
    "fallback": case({"on_gpu_output_unavailable": "cpu"}),
    "unknown": case({"heigth": "16"}),
    "scaled_bytes": case({"scale": "0.5"}, outputs=[("TYPE_UINT8", [3, 16, 24])]),
    "overflow": case({"scale": "1000"}, outputs=[("TYPE_FP16", [3, 16, 24])]),
    "output_type": case(outputs=[("TYPE_FP64", [3, 16, 24])]),
    "output_dims": case(outputs=[("TYPE_FP32", [3, 24, 16])]),
    "output_rank": case(outputs=[("TYPE_FP32", [16, 24])]),
    "output_layout": case({"layout": "NHWC"}),
    "geometry": case(outputs=[MADE, ("TYPE_FP32", [4])]),
    "geometry_type": case(outputs=[MADE, ("TYPE_INT32", [8])]),
    "three_outputs": case(outputs=[MADE, GEOMETRY, GEOMETRY]),
    "input_type": case(inputs=[("TYPE_FP32", [-1, -1, 3])]),
    "input_dims": case(inputs=[("TYPE_UINT8", [-1, -1, 4])]),
    "input_string": case(inputs=[("TYPE_STRING", [-1])]),
    "two_inputs": case(inputs=[STRING, STRING]),
}


def write(root: Path, configs: dict[str, str]) -> Path:
    for name, text in configs.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return root


def messages(report: CheckReport, model: str) -> list[str]:
    return [finding.message for finding in report.findings if finding.model == model]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> CheckReport:
    return check_repository(write(tmp_path_factory.mktemp("refused"), REFUSED))


@pytest.mark.parametrize("name", list(ACCEPTED))
def test_sound_models_pass(name: str, tmp_path: Path) -> None:
    report = check_repository(write(tmp_path, {name: ACCEPTED[name]}))
    own = [message for message in messages(report, name) if "tritonstack.note" not in message]
    assert own == [] and report.ok


@pytest.mark.parametrize("name", list(REFUSED))
def test_mistakes_are_found(refused: CheckReport, name: str) -> None:
    found = [finding for finding in refused.findings if finding.model == name]
    assert [finding.severity for finding in found] == ["error"], found
    assert found[0].line is not None and found[0].fix


def test_a_misspelled_parameter_is_named(refused: CheckReport) -> None:
    fixes = [finding.fix for finding in refused.findings if finding.model == "unknown"]
    assert any("'height'" in fix for fix in fixes)


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    report = check_repository(write(tmp_path, {"m": case({"height": "x", "width": "y", "layout": "z"})}))
    assert len(messages(report, "m")) == 3


@needs_backend
def test_the_backend_takes_what_check_passes(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    names = [state.name for state in start_server(write(tmp_path, ACCEPTED)).model_states() if state.ready]
    assert sorted(names) == sorted(ACCEPTED)


@needs_backend
def test_the_backend_refuses_in_the_words_of_check(tmp_path: Path, refused: CheckReport) -> None:
    from tritonstack_deploy.embedded import EmbeddedServer

    lines: list[str] = []
    server = EmbeddedServer(write(tmp_path, REFUSED), on_log=lambda line: lines.append(line.raw))
    with pytest.raises(RepositoryError):
        server.start()
    different = []
    for name in REFUSED:
        (words,) = messages(refused, name)
        # What lies between the colons is each side's own.
        said = [line for line in lines if f"'{name}'" in line or f" {name} " in line or f"({name}" in line]
        if not any(words in line for line in said):
            different.append((name, words, [line[-200:] for line in said if "rror" in line or "ailed" in line][:1]))
    assert different == []


def test_the_manual_lists_every_parameter() -> None:
    from tritonstack_export.check.image_preprocess_rules import SETTINGS

    manual = (Path(__file__).resolve().parents[2] / "docs" / "image_preprocess.md").read_text()
    rows = "\n".join(line.split("|")[1] for line in manual.splitlines() if line.startswith("| `"))
    assert [name for name in SETTINGS if f"`{name}`" not in rows] == []
