"""`tritonstack infer` against the real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tritonstack.command import main
from tritonstack.errors import ServerError
from tritonstack.infer.classification import scored_classes


@pytest.fixture
def infer(url: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command: exit code, stdout, stderr."""

    def run(*arguments: str, address: str = url) -> tuple[int, str, str]:
        code = main(["infer", *arguments, "--url", address])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    """Five files of one colour each."""
    paths = []
    for i, colour in enumerate(["red", "lime", "blue", "lime", "red"]):
        path = tmp_path / f"{i}_{colour}.png"
        Image.new("RGB", (9, 7), colour).save(path)
        paths.append(str(path))
    return paths


def test_tensors_as_a_table(infer: Any) -> None:
    code, out, err = infer("addone", "--input", "x=[[1, 2.5, 3]]")
    assert (code, err) == (0, "")
    assert "y       FP32  [1, 3]  2, 3.5, 4" in out
    assert "answered by addone version 3" in out


def test_tensors_as_json(infer: Any) -> None:
    code, out, _ = infer("addone", "--input", "x=[1,2,3]", "--shape", "x=1,3", "--version", "1", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["model_version"] == "1"
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [[2, 3, 4]]}]


def test_text_special_numbers_and_bytes_as_json(infer: Any) -> None:
    code, out, _ = infer(
        "identity", "--input", 'x_BYTES=[["hello", "ö"]]', "--input", "x_FP32=[[NaN, -Infinity]]",
        "--input", "x_BF16=[[1.5]]", "--input", "x_UINT64=[[18446744073709551615]]", "--input", "x_BOOL=[[true]]",
        "--json",
    )  # fmt: skip
    values = {output["name"]: output["data"] for output in json.loads(out)["outputs"]}
    assert code == 0
    assert values == {
        "y_BYTES": [["hello", "ö"]],
        "y_FP32": [["NaN", "-Infinity"]],
        "y_BF16": [[1.5]],
        "y_UINT64": [[18446744073709551615]],
        "y_BOOL": [[True]],
    }


def test_files(infer: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    np.savez(tmp_path / "both.npz", x_INT8=np.array([[7]], np.int8), other=np.zeros(2))
    assert "2, 2, 2" in infer("addone", "--input", f"x=@{tmp_path}/x.npy")[1]
    assert "  7\n" in infer("identity", "--input", f"x_INT8=@{tmp_path}/both.npz")[1]
    code, _, err = infer("identity", "--input", f"x_UINT8=@{tmp_path}/both.npz")
    assert (code, "has no array 'x_UINT8'" in err) == (1, True)
    code, _, err = infer("addone", "--input", f"x=@{tmp_path}/none.npy")
    assert (code, "No such file" in err) == (1, True)
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    code, _, err = infer("addone", "--input", f"x=@{tmp_path}/bad.npy")
    assert (code, "not a .npy or .npz file" in err) == (1, True)
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert infer("addone", "--input", f"x=@{tmp_path}/pickle.npy")[0] == 1
    for name in ("torn.npz", "bad.npz"):
        torn = tmp_path / name
        content = (tmp_path / "both.npz").read_bytes()
        torn.write_bytes(content[:-40] if name == "torn.npz" else content[:90] + b"????" + content[94:])
        code, _, err = infer("identity", "--input", f"x_INT8=@{torn}")
        assert (code, "not a .npy or .npz file" in err, err.count("\n")) == (1, True, 1), err
    # Arrays from files keep their data type: a float64 file is not rounded behind one's back.
    np.save(tmp_path / "wide.npy", np.ones((1, 3)))
    code, _, err = infer("addone", "--input", f"x=@{tmp_path}/wide.npy")
    assert (code, "wrong data type" in err) == (1, True)


def test_chosen_outputs(infer: Any) -> None:
    _, out, _ = infer(
        "identity", "--input", "x_INT8=[[1]]", "--input", "x_BOOL=[[true]]", "--output", "y_BOOL", "--json"
    )
    assert [output["name"] for output in json.loads(out)["outputs"]] == ["y_BOOL"]


def test_images(infer: Any, pictures: list[str]) -> None:
    code, out, err = infer("pictures", "--image", *pictures, "--top", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == pictures[0]
    assert lines[1].strip() == "98.67%  red: of an apple"
    assert lines[-1] == "answered by pictures version 1"
    assert len(lines) == 5 * 3 + 1


def test_images_as_json(infer: Any, pictures: list[str]) -> None:
    code, out, _ = infer("pictures", "--image", *pictures[:2], "--image", *pictures[2:], "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["model"], answer["model_version"]) == ("pictures", "1")
    assert [image["file"] for image in answer["images"]] == pictures
    assert [image["classes"][0]["label"] for image in answer["images"]] == [
        "red: of an apple", "green", "blau (größer)", "green", "red: of an apple",
    ]  # fmt: skip
    for image in answer["images"]:
        assert len(image["classes"]) == 3
        assert sum(c["probability"] for c in image["classes"]) == pytest.approx(1)
        assert image["classes"][0]["probability"] == pytest.approx(np.exp(5) / (np.exp(5) + 2), rel=1e-5)


def test_a_bad_image_is_named(infer: Any, pictures: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"hello")
    code, _, err = infer("pictures", "--image", *pictures[:1], str(bad))
    assert code == 1
    assert "bad.jpg" in err
    assert "not a picture" in err


@pytest.mark.parametrize("bad", [[0], [2], [0, 1, 2, 3], [1, 4]], ids=str)
def test_bad_images_do_not_spoil_the_others(infer: Any, pictures: list[str], bad: list[int]) -> None:
    # max_batch_size is 4: a whole batch can be bad, and a bad one can be anywhere in it.
    _, whole, _ = infer("pictures", "--image", *pictures, "--json")
    for index in bad:
        Path(pictures[index]).write_bytes(b"hello")
    code, out, err = infer("pictures", "--image", *pictures, "--json")
    assert code == 1
    assert f"{len(bad)} of 5 pictures could not be read" in err
    for index, (image, before) in enumerate(zip(json.loads(out)["images"], json.loads(whole)["images"], strict=True)):
        if index in bad:
            assert f"picture {index + 1}: image file" in err
            assert image["classes"] == []
            assert "not a picture" in image["error"]
        else:
            assert image == before
    _, text, _ = infer("pictures", "--image", *pictures)
    assert text.count("not sent: image file") == len(bad)


def test_no_good_image_at_all(infer: Any, pictures: list[str]) -> None:
    for path in pictures:
        Path(path).write_bytes(b"")
    code, out, err = infer("pictures", "--image", *pictures)
    assert (code, out) == (1, "")
    assert "5 of 5 pictures" in err


def test_a_model_that_knows_no_pictures(infer: Any, pictures: list[str]) -> None:
    code, _, err = infer("addone", "--image", pictures[0])
    assert code == 1
    assert "'tritonstack.image'" in err


def test_an_unknown_model(infer: Any) -> None:
    code, out, err = infer("adone", "--input", "x=1")
    assert (code, out) == (1, "")
    assert "did you mean 'addone'" in err
    assert err.count("\n") == 1


def test_names_are_listed_once(infer: Any) -> None:
    for arguments in (["zzz", "--input", "x=1"], ["addone", "--input", "x=[[1,2,3]]", "--output", "zzz"]):
        _, _, err = infer(*arguments)
        assert "zzz" in err
        assert err.count("'y'" if "addone" in arguments else "failing") == 1, err


def test_no_server(infer: Any) -> None:
    code, _, err = infer("m", "--input", "x=1", address="127.0.0.1:1")
    assert code == 1
    assert "tritonstack serve DIR" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to send"),
        (["--image", "a.jpg", "--input", "x=1"], "--image goes without"),
        (["--input", "x=1", "--top", "3"], "--top goes with --image"),
        (["--image", "a.jpg", "--top", "0"], "argument --top: given '0'"),
        (["--input", "x"], "expected NAME=VALUE"),
        (["--input", "x=[1"], "is not JSON"),
        (["--input", "x=[[1], [1, 2]]"], "not an array of numbers"),
        (["--input", 'x="text"'], "not an array of numbers"),
        (["--input", "x=null"], "not an array of numbers"),
        (["--input", "x=[[1, null, 3]]"], "not an array of numbers"),
        (["--input", "x=1" + 400 * "0"], "larger than any FP32"),
        (["--input", "x=@"], "NAME=@FILE.npy"),
        (["--image", ""], "--image: given ''"),
        (["--input", "x=1", "--input", "x=2"], "given twice"),
        (["--input", "z=1"], "no input 'z'"),
        (["--input", "x=[1,2,3]", "--shape", "x=1,a"], "--shape"),
        (["--input", "x=[1,2,3]", "--shape", "x=2,3"], "has 3 elements"),
        (["--input", "x=[1,2,3]", "--shape", "y=1,3"], "no --input"),
        (["--input", "x=[[1,2,3]]", "--timeout", "0"], "--timeout: given '0'"),
        (["--input", "x=[[1,2,3]]", "--version", "latest"], "bad --version"),
        (["--input", "x=[[1,2,3]]", "--protocol", "http2"], "--protocol"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(infer: Any, arguments: list[str], text: str) -> None:
    code, out, err = infer("addone", *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


def test_the_help_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["infer", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.count("\n") <= 30
    assert max(map(len, text.splitlines())) <= 100


def test_scores_labels_and_softmax() -> None:
    entries = [b"1.0:2:a: b: c", b"0.0:0", "-1e30:1:größe".encode()]
    classes = scored_classes(entries, "softmax")
    assert [(c.index, c.label) for c in classes] == [(2, "a: b: c"), (0, ""), (1, "größe")]
    assert [c.probability for c in classes] == pytest.approx([0.7310586, 0.2689414, 0])
    assert [c.probability for c in scored_classes([b"0.25:0", b"0.75:1"], "none")] == [0.75, 0.25]
    assert scored_classes([b"1e4:0", b"1e4:1"], "softmax")[0].probability == 0.5
    for bad in (b"x:1", b"1.0", b"", b"1.0:x", b"nan:0"):
        with pytest.raises(ServerError):
            scored_classes([bad], "softmax")
