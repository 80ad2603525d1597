"""Pools of requests from metadata and from the user's data, and what goes over the wire to a real server."""

from __future__ import annotations

import base64
import json
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from picture_models import byte_picture_repository

from tritonstack import Client
from tritonstack.client.call import Call
from tritonstack.client.connection import Address
from tritonstack.client.grpc_codec import GrpcCodec
from tritonstack.client.http_codec import HttpCodec
from tritonstack.client.model import ModelConfigView, ModelMetadata
from tritonstack.client.request import InferRequest, Span
from tritonstack.client.result import DecodedReply
from tritonstack.errors import InputError, TensorError, UsageError
from tritonstack.load import ClosedLoop, LoadPlan, LoadReport, run_load
from tritonstack.load.expected import difference, expected_answer
from tritonstack.load.input_pool import POOL_BYTES, POOL_REQUESTS, InputPool
from tritonstack.load.inputs import (
    ArrayInputs,
    ImageInputs,
    InputSource,
    JsonlInputs,
    RandomInputs,
    TextInputs,
    ZeroInputs,
    build_pool,
    find_images,
    load_texts,
)
from tritonstack.load.request_encoding import (
    Encoding,
    RequestOptions,
    build,
    encode,
    in_shared_memory,
    size_limit_hint,
)
from tritonstack.tensor.datatype import DATATYPES
from tritonstack.tensor.tensor_spec import TensorSpec
from tritonstack_deploy.embedded import EmbeddedServer

CONFIG = ModelConfigView("m", "", "python", 8, {}, (), {}, False, (), 0, 1, False, False, ())


def pool(
    source: InputSource,
    *specs: TensorSpec,
    batch: int = 1,
    limit: int = 8,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> InputPool:
    metadata = ModelMetadata("m", ("1",), "", specs, (), limit)
    return build_pool(source, metadata=metadata, config=CONFIG, batch=batch, shapes=shapes or {})


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
@pytest.mark.parametrize("source", [RandomInputs(1), ZeroInputs()])
def test_every_datatype_can_be_generated_and_sent(datatype: str, source: InputSource) -> None:
    from tritonstack.tensor.conform import conform

    spec = TensorSpec("x", datatype, (-1, 4, 2))
    made = pool(source, spec, batch=3)
    for request in made.requests:
        assert request["x"].shape == (3, 4, 2)
        conform(spec, request["x"], max_batch_size=8, cast=made.cast)


def test_random_values_follow_the_seed_and_differ_between_requests() -> None:
    spec = TensorSpec("x", "FP32", (-1, 5))
    first, again, other = (pool(RandomInputs(seed), spec).requests for seed in (1, 1, 2))
    assert len(first) == POOL_REQUESTS
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0]["x"], other[0]["x"])
    assert not np.array_equal(first[0]["x"], first[1]["x"])
    assert all(((r["x"] >= 0) & (r["x"] < 1)).all() for r in first)


def test_wide_integers_are_valid_ids_masks_and_segments() -> None:
    (request, *_) = pool(RandomInputs(), TensorSpec("ids", "INT64", (-1, 100))).requests
    assert set(np.unique(request["ids"])) == {0, 1}


def test_a_pool_of_large_requests_stays_within_its_memory() -> None:
    spec = TensorSpec("x", "UINT8", (-1, 10_000_000))
    assert len(pool(ZeroInputs(), spec).requests) == 1
    made = pool(RandomInputs(), spec).requests
    assert len(made) == POOL_BYTES // 10_000_000
    assert len(pool(RandomInputs(), TensorSpec("x", "UINT8", (-1, POOL_BYTES + 1))).requests) == 1


@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (1, 8), (5, 2), (4, 2), (6, 4), (3, 7)])
def test_samples_are_cut_into_batches_in_turn(samples: int, batch: int) -> None:
    data = np.arange(samples, dtype=np.float32)[:, None]
    made = pool(ArrayInputs({"x": data}), TensorSpec("x", "FP32", (-1, 1)), batch=batch).requests
    sent = np.concatenate([request["x"][:, 0] for request in made])
    assert all(request["x"].shape == (batch, 1) for request in made)
    assert np.array_equal(sent, np.arange(len(sent)) % samples)
    assert np.array_equal(np.bincount(sent.astype(int)), np.full(samples, len(sent) // samples)), "each equally often"


def test_one_sample_without_its_batch_axis_is_taken_as_one() -> None:
    made = pool(ArrayInputs({"x": np.ones(3, np.float32)}), TensorSpec("x", "FP32", (-1, 3)), batch=2).requests
    assert [request["x"].shape for request in made] == [(2, 3)]


def test_without_batching_an_extra_axis_counts_requests() -> None:
    spec = TensorSpec("x", "FP32", (2, 3))
    assert [r["x"].shape for r in pool(ArrayInputs({"x": np.ones((2, 3))}), spec, limit=0).requests] == [(2, 3)]
    made = pool(ArrayInputs({"x": np.arange(30.0).reshape(5, 2, 3)}), spec, limit=0).requests
    assert [request["x"][0, 0] for request in made] == [0, 6, 12, 18, 24]


def test_inputs_with_different_numbers_of_samples_are_refused() -> None:
    specs = (TensorSpec("a", "FP32", (-1, 1)), TensorSpec("b", "FP32", (-1, 1)))
    arrays = {"a": np.ones((2, 1), np.float32), "b": np.ones((3, 1), np.float32)}
    with pytest.raises(TensorError, match="different numbers of samples"):
        pool(ArrayInputs(arrays), *specs)


def test_open_dimensions_are_asked_for_by_the_flag_that_gives_them() -> None:
    specs = (TensorSpec("a", "FP32", (-1, -1, 3)), TensorSpec("b", "FP32", (-1, 4)))
    with pytest.raises(UsageError, match="--shape a:Dx3 "):
        pool(RandomInputs(), *specs)
    made = pool(RandomInputs(), *specs, shapes={"a": (7, 3)}, batch=2)
    assert made.requests[0]["a"].shape == (2, 7, 3)


def test_a_request_that_nothing_can_carry_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match=r"too large to send.*2 GiB"):
        pool(RandomInputs(), TensorSpec("a", "FP32", (-1, -1, -1)), shapes={"a": (10**8, 10**5)})


def test_a_scalar_model_needs_no_dims() -> None:
    made = pool(RandomInputs(), TensorSpec("x", "FP32", ()), limit=0)
    assert made.requests[0]["x"].shape == ()


# ---- pools of any size, ranges


def test_a_large_pool_is_made_as_it_is_read_and_is_the_same_every_time() -> None:
    metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", "UINT8", (-1, 600_000)),), (), 8)
    made = build_pool(RandomInputs(3), metadata=metadata, config=CONFIG, batch=1, shapes={}, size=2000)
    assert len(made.requests) == 2000
    assert np.array_equal(made.requests[1999]["x"], made.requests[-1]["x"])
    assert not np.array_equal(made.requests[7]["x"], made.requests[8]["x"])
    with pytest.raises(IndexError):
        made.requests[2000]


def test_a_pool_that_memory_cannot_hold_is_refused() -> None:
    metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", "UINT8", (-1, 1_000_000)),), (), 8)
    with pytest.raises(UsageError, match=r"does not fit into memory.*10000000 requests of 1\.0 MB.*--pool"):
        build_pool(RandomInputs(), metadata=metadata, config=CONFIG, batch=1, shapes={}, size=10_000_000)
    with pytest.raises(UsageError, match="at least one"):
        build_pool(RandomInputs(), metadata=metadata, config=CONFIG, batch=1, shapes={}, size=0)


def test_less_of_the_users_own_data_is_used_where_that_is_asked_for() -> None:
    metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", "FP32", (-1, 1)),), (), 8)
    source = ArrayInputs({"x": np.arange(10, dtype=np.float32)[:, None]})
    made = build_pool(source, metadata=metadata, config=CONFIG, batch=2, shapes={}, size=3)
    assert [request["x"].ravel().tolist() for request in made.requests] == [[0, 1], [2, 3], [4, 5]]
    many = {"x": np.arange(1000, dtype=np.float32)[:, None]}
    assert len(build_pool(ArrayInputs(many), metadata=metadata, config=CONFIG, batch=1, shapes={}).requests) == 16
    made = build_pool(ArrayInputs(many), metadata=metadata, config=CONFIG, batch=1, shapes={}, size=1000)
    assert len(made.requests) == 1000


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("INT64", 5, 30521), ("UINT8", 0, 1), ("INT8", -128, 127), ("FP32", -2.5, 7), ("FP16", -1, 1), ("BF16", 3, 3)],
)
def test_random_values_fill_their_range_and_keep_to_it(kind: str, low: float, high: float) -> None:
    spec = TensorSpec("x", kind, (-1, 5000))
    values = np.concatenate([r["x"].ravel() for r in pool(RandomInputs(1, {"x": (low, high)}), spec).requests])
    assert values.min() >= low and values.max() <= high
    assert float(values.max()) - float(values.min()) >= 0.98 * (high - low)


def test_the_widest_range_of_floats_does_not_overflow() -> None:
    for kind, most in (("FP64", np.finfo(np.float64).max), ("FP32", np.finfo(np.float32).max), ("FP16", 65504.0)):
        spec = TensorSpec("x", kind, (-1, 100))
        values = pool(RandomInputs(1, {"x": (-float(most), float(most))}), spec).requests[0]["x"]
        assert np.isfinite(values).all()


def test_ranges_come_from_the_models_config_and_are_overruled() -> None:
    from dataclasses import replace

    metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", "INT32", (-1, 100)),), (), 8)
    config = replace(CONFIG, parameters={"tritonstack.ranges": '{"x": [10, 20]}'})
    for source, low, high in ((RandomInputs(), 10, 20), (RandomInputs(0, {"x": (7, 8)}), 7, 8)):
        values = build_pool(source, metadata=metadata, config=config, batch=1, shapes={}).requests[0]["x"]
        assert (values.min(), values.max()) == (low, high)
    for text in ('{"y": [0, 1]}', "[]", "{", '{"x": 1}', '{"x": [2, 1]}', '{"x": [0.5, 1]}'):
        bad = replace(CONFIG, parameters={"tritonstack.ranges": text})
        with pytest.raises(InputError, match=r"tritonstack\.ranges"):
            build_pool(RandomInputs(), metadata=metadata, config=bad, batch=1, shapes={})


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("INT8", (0, 200)),
        ("INT32", (0.5, 1)),
        ("BYTES", (0, 1)),
        ("BOOL", (0, 1)),
        ("FP16", (0, 1e6)),
        ("FP32", (2, 1)),
    ],
)
def test_ranges_that_do_not_fit_are_refused(kind: str, limits: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="input 'x'"):
        pool(RandomInputs(0, {"x": limits}), TensorSpec("x", kind, (-1, 3)))
    with pytest.raises(UsageError, match="no input 'z'"):
        pool(RandomInputs(0, {"z": (0, 1)}), TensorSpec("x", kind, (-1, 3)))


# ---- expected outputs beside the inputs


def test_expected_outputs_are_cut_as_their_inputs_are() -> None:
    metadata = ModelMetadata(
        "m", ("1",), "", (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),), 8
    )
    x = np.arange(6, dtype=np.float32)[:, None]
    made = build_pool(
        ArrayInputs({"x": x}), metadata=metadata, config=CONFIG, batch=4, shapes={}, expected={"y": x + 1}
    )
    for index, request in enumerate(made.requests):
        expected = made.extras_of(index).expected
        assert expected is not None
        assert np.array_equal(expected["y"], request["x"] + 1)
    with pytest.raises(TensorError, match=r"not as many expected outputs.*given 5"):
        build_pool(ArrayInputs({"x": x}), metadata=metadata, config=CONFIG, batch=1, shapes={}, expected={"y": x[:5]})
    with pytest.raises(TensorError, match="no output 'z'"):
        build_pool(ArrayInputs({"x": x}), metadata=metadata, config=CONFIG, batch=1, shapes={}, expected={"z": x})
    with pytest.raises(UsageError, match="expected outputs of a file"):
        build_pool(RandomInputs(), metadata=metadata, config=CONFIG, batch=1, shapes={}, expected={"y": x})


# ---- texts


def test_lines_of_text_are_samples_whatever_is_in_them(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_bytes("größe\r\n\nzwei\u2028drei\x0b\n猫 \n".encode())
    texts = load_texts(path)
    assert texts == ("größe", "", "zwei\u2028drei\x0b", "猫 ")
    made = pool(TextInputs(texts), TensorSpec("t", "BYTES", (-1, 1)), batch=2)
    assert [request["t"].tolist() for request in made.requests] == [
        [["größe"], [""]],
        [["zwei\u2028drei\x0b"], ["猫 "]],
    ]
    path.write_bytes(b"good\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"line 2: not UTF-8.*b64"):
        load_texts(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="holds no text"):
        load_texts(path)


def test_texts_need_one_input_that_takes_one() -> None:
    one, many = TensorSpec("t", "BYTES", (-1, -1)), TensorSpec("p", "BYTES", (-1, 2))
    assert pool(TextInputs(("a",)), one).requests[0]["t"].shape == (1, 1)
    with pytest.raises(UsageError, match="2 inputs of type BYTES"):
        pool(TextInputs(("a",)), one, many)
    with pytest.raises(UsageError, match="0 inputs of type BYTES"):
        pool(TextInputs(("a",)), TensorSpec("x", "FP32", (-1, 1)))
    with pytest.raises(TensorError, match="takes 2 texts"):
        pool(TextInputs(("a",)), many)


# ---- JSONL


def jsonl(tmp_path: Path, *lines: object, specs: tuple[TensorSpec, ...], batch: int = 1, limit: int = 8) -> InputPool:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)
    metadata = ModelMetadata("m", ("1",), "", specs, outputs, limit)
    return build_pool(JsonlInputs(path), metadata=metadata, config=CONFIG, batch=batch, shapes={})


X = TensorSpec("x", "FP32", (-1, 2))


def test_each_line_is_a_request_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    raw = base64.b64encode(np.array([5, 6], np.float32).tobytes()).decode()
    made = jsonl(
        tmp_path,
        {"x": [1, 2]},
        "",
        {"inputs": {"x": [[3, 4]]}, "id": "größe", "expected": {"y": [7, 8]}, "sequence": 9, "parameters": {"k": 1}},
        {"inputs": {"x": {"b64": raw}}, "id": 12, "sequence": "s"},
        specs=(X,),
    )
    assert [request["x"].tolist() for request in made.requests] == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert made.ids == ("", "größe", "12")
    second = made.extras_of(1)
    assert second.expected is not None
    assert np.array_equal(second.expected["y"], [[7, 8]])  # type: ignore[arg-type]
    assert (second.sequence, second.parameters) == (9, {"k": 1})
    assert made.extras_of(2).sequence == "s"


def test_texts_and_bytes_mix_in_inputs_of_bytes(tmp_path: Path) -> None:
    spec = TensorSpec("t", "BYTES", (-1, 2))
    made = jsonl(tmp_path, {"t": ["größe", {"b64": "/9j/4AA="}]}, specs=(spec,))
    assert made.requests[0]["t"].tolist() == [["größe", b"\xff\xd8\xff\xe0\x00"]]


def test_an_input_called_like_a_key_needs_the_long_form(tmp_path: Path) -> None:
    spec = TensorSpec("id", "FP32", (-1, 1))
    assert jsonl(tmp_path, {"inputs": {"id": [3]}}, specs=(spec,)).requests[0]["id"].tolist() == [[3]]
    with pytest.raises(TensorError, match="wants input 'id'"):
        jsonl(tmp_path, {"id": [3]}, specs=(spec,))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not JSON"),
        ("[1]", "not a request"),
        ("[" * 100_000, "nested too deeply"),
        ({"x": [1, 2, 3]}, "dimension 1 is 3 where the model wants 2"),
        ({"x": [[[1, 2]]]}, "3 dimensions where the model wants 2"),
        ({"x": [[1, 2], [3, 4]]}, "a batch of 2 where --batch says 1"),
        ({"x": [[1], [2, 3]]}, "'x' is not an array"),
        ({"x": ["a", "b"]}, "holds no numbers"),
        ({"x": [None, 1]}, "holds no numbers"),
        ({"x": {"b64": "AAAA"}}, "do not fit its shape"),
        ({"x": {"b64": "*"}}, "not base64"),
        ({"x": {"raw": ""}}, "without raw bytes"),
        ({"y": [1, 2]}, "no input 'y'"),
        ({}, "wants input 'x'"),
        ({"inputs": {"x": [1, 2]}, "extra": 1}, "unknown key 'extra'"),
        ({"inputs": [1, 2]}, "not an object"),
        ({"x": [1, 2], "expected": {"z": 1}}, "no output 'z'"),
        ({"x": [1, 2], "expected": 5}, "'expected' is not an object"),
        ({"x": [1, 2], "sequence": 0}, "no correlation id"),
        ({"x": [1, 2], "sequence": True}, "no correlation id"),
        ({"x": [1, 2], "id": [1]}, "neither a text nor a number"),
        ({"x": [1, 2], "parameters": {"k": [1]}}, "no object of simple values"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: object, what: str) -> None:
    with pytest.raises(InputError) as caught:
        jsonl(tmp_path, {"x": [1, 2]}, line, specs=(X,))
    assert "requests.jsonl, line 2: " in str(caught.value)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_jsonl_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no request"):
        jsonl(tmp_path, "", specs=(X,))
    with pytest.raises(InputError, match="two requests of one id"):
        jsonl(tmp_path, {"x": [1, 2], "id": "a"}, {"x": [1, 2], "id": "a"}, specs=(X,))
    with pytest.raises(InputError, match="cannot be read"):
        pool(JsonlInputs(tmp_path / "missing"), X)


def test_batches_come_whole_in_each_line(tmp_path: Path) -> None:
    made = jsonl(tmp_path, {"x": [[1, 2], [3, 4]]}, specs=(X,), batch=2)
    assert made.requests[0]["x"].shape == (2, 2)
    with pytest.raises(TensorError, match=r"line 1: .*a batch of 1 where --batch says 2"):
        jsonl(tmp_path, {"x": [1, 2]}, specs=(X,), batch=2)


# ---- what goes over the wire, by the real server


def ask(server: EmbeddedServer, encoding: Encoding, request: InferRequest) -> DecodedReply:
    """The real server's answer to an encoded request."""
    url = server.grpc_url if encoding == "grpc" else server.http_url
    sent = encode(request, encoding)
    transport = Address(url, protocol=None, timeout_s=10, tls=None, headers=None, retries=0).transport()
    try:
        reply = transport.send(Call(sent.target, (sent.body,), "it", headers=sent.headers), 10.0)
    finally:
        transport.close()
    return (GrpcCodec() if encoding == "grpc" else HttpCodec()).decode_infer(reply)


def described(server: EmbeddedServer, model: str) -> ModelMetadata:
    with Client(server.grpc_url) as client:
        return client.metadata(model)


@pytest.mark.parametrize("encoding", ["grpc", "http", "json"])
def test_texts_come_back_as_they_were_sent(load_server: EmbeddedServer, encoding: Encoding) -> None:
    """C02 through the encoder of the load tester: NULs, emptiness, any Unicode; raw bytes where JSON is not used."""
    values: list[object] = ["ab\0\0", "c", "a\0b", "猫ö", "", "zwei\u2028"]
    if encoding != "json":
        values.append(b"\xff\xd8\xff\xe0\x00")
    metadata = described(load_server, "text")
    spec = [TensorSpec("y", "BYTES", (-1, 1))]
    for value in values:
        request = build(metadata, {"x": np.array([[value]], object)}, RequestOptions(request_id="größe"), cast=False)
        answer = ask(load_server, encoding, request)
        assert answer.request_id == "größe"
        assert difference(expected_answer({"y": [[value]]}, spec, model="text"), answer.outputs) is None
        assert difference(expected_answer({"y": [["other"]]}, spec, model="text"), answer.outputs) is not None


@pytest.mark.parametrize("value", [np.array([[b"ab\0\0"]]), np.array([[1]], object), np.array([["\ud800"]], object)])
def test_texts_that_are_none_are_refused_before_sending(value: np.ndarray) -> None:
    """C02: fixed-width bytes have lost their NULs, numbers are no texts, a lone surrogate is no Unicode."""
    metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", "BYTES", (-1, 1)),), (), 8)
    with pytest.raises(TensorError, match="'x'"):
        build(metadata, {"x": value}, RequestOptions(), cast=False)


@pytest.mark.parametrize("encoding", ["grpc", "http", "json"])
@pytest.mark.parametrize(
    ("value", "want"),
    [
        (np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), [[1, 2, 3], [4, 5, 6]]),
        (np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2], [[1, 3, 5], [7, 9, 11]]),
        (np.arange(3, dtype=">f4").reshape(1, 3), [[1, 2, 3]]),
        (np.broadcast_to(np.float32(1), (2, 3)), [[2, 2, 2], [2, 2, 2]]),
    ],
    ids=["fortran", "strided", "big-endian", "read-only"],
)
def test_values_arrive_in_row_major_order(
    load_server: EmbeddedServer, encoding: Encoding, value: np.ndarray, want: list[list[float]]
) -> None:
    """C08, and C10: heads are as long as their bytes say, in every encoding."""
    request = build(described(load_server, "plus_one"), {"x": value}, RequestOptions(request_id="größe-猫"), cast=False)
    answer = ask(load_server, encoding, request)
    right = expected_answer({"y": want}, [TensorSpec("y", "FP32", (-1, 3))], model="plus_one")
    assert difference(right, answer.outputs) is None


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.zeros(3, np.float32), r"add a leading batch dimension: x\[None\]"),
        (np.zeros((2, 4), np.float32), "dimension 1 is 4 where the model wants 3"),
        (np.zeros((9, 3), np.float32), "max_batch_size is 8"),
        (np.zeros((0, 3), np.float32), "batch of 0"),
        (np.zeros((2, 3)), "wrong data type"),
    ],
)
def test_arrays_that_do_not_fit_are_named_before_sending(value: np.ndarray, what: str) -> None:
    """C08."""
    metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", "FP32", (-1, 3)),), (), 8)
    with pytest.raises(TensorError, match=f"input 'x'.*{what}"):
        build(metadata, {"x": value}, RequestOptions(), cast=False)


def test_what_json_cannot_say_is_refused() -> None:
    def refuse(kind: str, value: np.ndarray, what: str) -> None:
        metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", kind, (-1,) * value.ndim),), (), 0)
        with pytest.raises(TensorError, match=what):
            encode(build(metadata, {"x": value}, RequestOptions(), cast=True), "json")

    refuse("FP32", np.array([np.nan], np.float32), "NaN or infinity")
    refuse("FP64", np.array([np.inf]), "NaN or infinity")
    refuse("FP16", np.array([1], np.float16), "FP16")
    refuse("BF16", np.array([1], np.float32), "BF16")
    refuse("BYTES", np.array([b"\xff"], object), "not UTF-8")


def test_a_request_above_2_gib_is_refused_without_copying_it() -> None:
    """C04.4 and C10: zeros that were never touched take no memory, so only a copy would."""
    metadata = ModelMetadata("m", ("1",), "", (TensorSpec("x", "UINT8", (-1,)),), (), 0)
    request = build(metadata, {"x": np.zeros(2**31, np.uint8)}, RequestOptions(), cast=False)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for encoding in ("grpc", "http", "json"):
        with pytest.raises(TensorError, match="too large"):
            encode(request, encoding)  # type: ignore[arg-type]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 500_000


def test_limits_on_sizes_are_explained_where_they_can_be_why() -> None:
    assert size_limit_hint("grpc", 4_000_000) is None
    assert "4 MiB" in (size_limit_hint("grpc", 5_000_000) or "")
    assert size_limit_hint("http", 64 * 2**20) is None
    assert "--http-max-input-size" in (size_limit_hint("http", 70_000_000) or "")
    assert "--http-max-input-size" in (size_limit_hint("json", 70_000_000) or "")


def test_options_of_a_request_are_checked_when_they_are_made() -> None:
    with pytest.raises(UsageError, match="queue_timeout_us"):
        RequestOptions(queue_timeout_us=0)
    with pytest.raises(UsageError, match="priority"):
        RequestOptions(priority=-1)
    with pytest.raises(UsageError, match="reserved"):
        RequestOptions(parameters={"timeout": 5})


def test_shared_memory_places_have_the_size_of_their_tensors() -> None:
    metadata = ModelMetadata("m", ("1",), "", (X,), (TensorSpec("y", "FP32", (-1, 2)),), 8)
    request = build(metadata, {"x": np.ones((1, 2), np.float32)}, RequestOptions(), cast=False)
    place = Span("region", 64, 8)
    shared = in_shared_memory(request, inputs={"x": place}, outputs={"y": Span("region", 128, 8)})
    assert b"region" in encode(shared, "grpc").body
    head = json.loads(encode(shared, "http").body)
    assert head["inputs"][0]["parameters"]["shared_memory_offset"] == 64
    assert head["outputs"][0]["parameters"]["shared_memory_region"] == "region"
    for places in ({}, {"x": Span("region", 0, 4)}):
        with pytest.raises(TensorError, match="no fitting place"):
            in_shared_memory(request, inputs=places)


# ---- through the load tester itself


def load(server: EmbeddedServer, model: str, source: InputSource, **options: object) -> LoadReport:
    plan = LoadPlan(
        model=model,
        url=server.grpc_url,
        arrivals=[ClosedLoop(2)],
        requests=8,
        duration_s=None,
        warmup_s=0.0,
        inputs=source,
        **options,  # type: ignore[arg-type]
    )
    return run_load(plan)


def test_pictures_go_as_the_bytes_of_their_files_where_the_model_takes_them(
    tmp_path: Path, start_server: Callable[..., EmbeddedServer]
) -> None:
    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, name in enumerate(("a.png", "b.jpg", "c.jpg")):
        Image.new("RGB", (30 + number, 20), (number * 90, 10, 200)).save(folder / name)
    server = start_server(byte_picture_repository(tmp_path / "models"))
    report = load(server, "file_sizes", ImageInputs(find_images(folder)), batch=2)
    assert report.ok, report.levels[0].errors
    assert report.input_origin == "3 image files"
    assert (report.inputs[0].datatype, report.inputs[0].shape) == ("BYTES", (2, 1))
    # The model refuses what does not begin as a JPEG or a PNG does.
    (folder / "d.png").write_bytes(b"not a picture")
    report = load(server, "file_sizes", ImageInputs(find_images(folder)))
    assert 0 < report.levels[0].counts.errors < 8
    assert "neither JPEG nor PNG" in report.levels[0].errors[0].example


def test_texts_and_jsonl_are_sent(load_server: EmbeddedServer, tmp_path: Path) -> None:
    report = load(load_server, "text", TextInputs(("größe", "猫", ""), origin="texts"))
    assert report.ok
    assert report.distinct_requests == 3
    path = tmp_path / "requests.jsonl"
    path.write_text('{"x": [1, 2, 3]}\n{"inputs": {"x": [[4, 5, 6]]}, "id": "b"}\n')
    report = load(load_server, "plus_one", JsonlInputs(path))
    assert report.ok
    assert report.distinct_requests == 2
    assert report.input_origin == "from requests.jsonl"
