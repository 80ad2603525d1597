"""Reading and writing config.pbtxt: the R19 texts and their siblings, and names of every kind."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2

from tritonstack.errors import RepositoryError
from tritonstack_export.repository import ConfigSyntaxError, parse_config, render_config

IO = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'


def refused(text: str | bytes) -> ConfigSyntaxError:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_config(text, path="net/config.pbtxt")
    assert isinstance(caught.value, RepositoryError)
    assert str(caught.value).startswith(f"net/config.pbtxt:{caught.value.line}:{caught.value.column}: ")
    return caught.value


@pytest.mark.parametrize(
    ("text", "line", "column", "problem", "fix"),
    [
        # R19: the handed texts
        ("backend: 'a'\nmax_batch_size: ${size}\n", 2, 17, "unresolved placeholder ${size}", "fill the template"),
        ('{"backend": "onnxruntime", "max_batch_size": 8}', 1, 1, "looks like JSON", "max_batch_size: 8"),
        ("max_batchsize: 8\n", 1, 1, "no field named 'max_batchsize'", "'max_batch_size'"),
        ('max_batch_size: 8\ninput [ { name: "x" dims: [ 3 ] \n', 2, 31, "ends inside a block", "} ]"),
        ("\ufeffmax_batch_size: 8", 1, 1, "byte order mark", "without BOM"),
        # siblings
        ("\n \n[ { } ]", 3, 1, "looks like JSON", ""),
        ("max_batch_size: {{ size }}", 1, 17, "unresolved placeholder {{ size }}", ""),
        ("max_batch_size: $SIZE", 1, 17, "unresolved placeholder $SIZE", ""),
        ('"name": "x"', 1, 1, 'not the string "name"', "without quotes"),
        ('input [ { nmae: "x" } ]', 1, 11, "ModelInput has no field named 'nmae'", "'name'"),
        ('input { name: "x" data_type: FP32 }', 1, 30, "no value named 'FP32'", "TYPE_FP32"),
        ("input { data_type: BYTES }", 1, 20, "no value named 'BYTES'", "TYPE_STRING"),
        ("input { data_type: type_fp32 }", 1, 20, "no value named", "TYPE_FP32"),
        ("instance_group { kind: GPU }", 1, 24, "no value named 'GPU'", "KIND_GPU"),
        ("max_batch_size: 8\nmax_batch_size: 9", 2, 17, "'max_batch_size' is given twice", "keep one"),
        ("dynamic_batching { }\nsequence_batching { }", 2, 1, "exclude each other", "keep one"),
        ("dynamic_batching { max_queue_delay_microseconds: -5 }", 1, 50, "must not be negative", ""),
        ("max_batch_size: 99999999999", 1, 17, "too large", "smaller"),
        ("input { data_type: 99999999999999999999 }", 1, 20, "too large", ""),
        ('max_batch_size: "8"', 1, 17, 'a whole number was expected, not "8"', ""),
        ("name: net", 1, 7, "a quoted string was expected", '"net"'),
        ("name: 'net\nbackend: 'x'", 1, 7, "no closing quote", ""),
        ("name: \u201cnet\u201d", 1, 7, "U+201C", '"'),
        ("max_batch_size:\u00a08", 1, 16, "U+00A0", "plain space"),
        ("max_batch_size: 1_000", 1, 17, "no number", ""),
        ("max_batch_size: +8", 1, 17, "no plus sign", ""),
        ('name: "a\\q"', 1, 9, "unknown escape \\q", ""),
        ("max_batch_size: 8 }", 1, 19, "closing brace without", ""),
        ("max_batch_size: 8\0", 1, 18, "control character", ""),
    ],
)
def test_a_text_triton_refuses_is_refused_at_its_place(
    text: str, line: int, column: int, problem: str, fix: str
) -> None:
    error = refused(text)
    assert (error.line, error.column) == (line, column)
    assert problem in error.problem
    assert fix in error.fix
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff\xfen\0a\0", "UTF-16"),
        (b"\x00\x01\xff", "binary file"),
        (b'name: "\xe9"', "not UTF-8"),
        (b"\xef\xbb\xbfmax_batch_size: 8", "byte order mark"),
    ],
)
def test_bytes_that_are_no_plain_utf8_say_what_they_are(data: bytes, problem: str) -> None:
    assert problem in refused(data).problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# größe: only a comment\n",
        'backend: "onnxruntime"\r\nmax_batch_size: 8\r\n',
        "max_batch_size: 0x8",
        "max_batch_size: 010",
        'optimization <>; metric_tags { key: "a" value: "b" \'c\' }',
        "optimization { eager_batching: t },",
        'parameters { key: "größe" value { string_value: "“${kept}”" } }',
    ],
)
def test_what_the_real_parser_takes_is_taken(text: str) -> None:
    parse_config(text, path="config.pbtxt")


# E29: names that break string templates
ODD_NAMES = [
    "a/b", "onnx::Conv_1", "x.1", "with space", 'quo"te', "apos'trophe", "back\\slash", "new\nline", "tab\t", "bell\a",
    "bild_größe", "日本", "😀", "L" * 300, "123", "", "\x7f", "${x}", "# no comment", "\\n", '"', "a:b,cx1",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_every_name_comes_back_byte_for_byte(name: str) -> None:
    config = model_config_pb2.ModelConfig(name="net", backend="onnxruntime", max_batch_size=8)
    config.input.add(name=name, data_type=model_config_pb2.TYPE_FP32, dims=[3])
    config.output.add(name=name + "_out", data_type=model_config_pb2.TYPE_FP32, dims=[-1, 3])
    config.parameters[name].string_value = name
    back = parse_config(render_config(config), path="config.pbtxt")
    assert back == config
    assert back.input[0].name.encode() == name.encode()


def test_text_is_the_same_whatever_the_order_of_filling() -> None:
    one, two = model_config_pb2.ModelConfig(), model_config_pb2.ModelConfig()
    for key in ("b", "a", "c"):
        one.parameters[key].string_value = key
    for key in ("c", "b", "a"):
        two.parameters[key].string_value = key
    one.name = two.name = "net"
    one.dynamic_batching.preferred_batch_size.extend([4, 8])
    two.dynamic_batching.preferred_batch_size.extend([4, 8])
    assert render_config(one) == render_config(two)


def test_a_model_without_batch_says_so_in_words() -> None:
    assert "max_batch_size: 0\n" in render_config(model_config_pb2.ModelConfig(name="net", backend="python"))


def test_empty_blocks_survive() -> None:
    config = parse_config("dynamic_batching { }\nversion_policy { all { } }\n" + IO, path="c")
    back = parse_config(render_config(config), path="c")
    assert back.HasField("dynamic_batching")
    assert back.version_policy.WhichOneof("policy_choice") == "all"
