"""config.pbtxt as text: protobuf's text format, parsed and written.

Parsing refuses whatever Triton's own parser refuses and says where: file, line, column, the offending text and how to
mend it. Writing is deterministic, so the same config gives the same bytes.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from tritonstack.errors import InternalError, RepositoryError
from tritonstack_export.repository.config_tokens import LineIndex, TokenProblem, tokens

# `inference.ModelConfig` of tritonclient.grpc.model_config_pb2, which ships no types.
ModelConfig: TypeAlias = Any

_BOM = "\ufeff"


class ConfigSyntaxError(RepositoryError):
    """A config.pbtxt cannot be read. `line` and `column` start at 1; `problem` and `fix` are the bare sentences."""

    def __init__(self, problem: str, *, path: Path | str, line: int, column: int, offending: str, fix: str) -> None:
        super().__init__(f"{path}:{line}:{column}: {problem}", given=offending or None, next_step=fix)
        self.problem = problem
        self.path = Path(path)
        self.line = line
        self.column = column
        self.offending = offending
        self.fix = fix


def parse_config(text: str | bytes, *, path: Path | str) -> ModelConfig:
    """The ModelConfig that `text` holds. `path` only serves the messages.

    Raises ConfigSyntaxError (a RepositoryError) where Triton would refuse the text.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    decoded = _decode(text, path=path)
    if decoded.startswith(_BOM):
        raise ConfigSyntaxError(
            "the file starts with a UTF-8 byte order mark, which Triton refuses",
            path=path,
            line=1,
            column=1,
            offending="bytes EF BB BF",
            fix="save it as UTF-8 without BOM",
        )
    first = decoded.lstrip()[:1]
    if first in ("{", "["):
        offset = decoded.index(first)
        _raise_at(
            decoded,
            offset,
            path=path,
            problem="this looks like JSON; Triton expects protobuf text format",
            fix="write fields without braces and quotes around them: max_batch_size: 8",
        )
    try:
        for _ in tokens(decoded):
            pass
    except TokenProblem as problem:
        _raise_at(decoded, problem.offset, path=path, problem=problem.problem, fix=problem.fix)
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(decoded, config)
    # A number beyond 64 bits in place of an enum word escapes protobuf's own error type.
    except (text_format.ParseError, ValueError) as error:
        raise _syntax_error(error, decoded, path=path) from None
    return config


def read_config_text(path: Path) -> bytes:
    """The bytes of a config.pbtxt. Raises RepositoryError when they cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RepositoryError(
            f"{path} cannot be read: {error.strerror}", next_step="check its permissions and the disk"
        ) from None


def render_config(config: ModelConfig) -> str:
    """`config` as text: one fixed order, `max_batch_size` always written, maps sorted by key.

    Parsing the result gives `config` back byte for byte, whatever its names contain; InternalError otherwise.
    """
    from google.protobuf import text_format

    head, rest = type(config)(), type(config)()
    rest.CopyFrom(config)
    for field in ("name", "platform", "backend", "runtime", "default_model_filename"):
        setattr(head, field, getattr(config, field))
        rest.ClearField(field)
    rest.ClearField("max_batch_size")

    def text(message: ModelConfig) -> str:
        return str(text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True))

    rendered = f"{text(head)}max_batch_size: {config.max_batch_size}\n{text(rest)}"
    back = parse_config(rendered, path="config.pbtxt")
    if back.SerializeToString(deterministic=True) != config.SerializeToString(deterministic=True):
        raise InternalError(f"the config of {config.name!r} does not survive being written as text")
    return rendered


def _decode(text: str | bytes, *, path: Path | str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        before = text[: error.start].decode("utf-8", errors="replace")
        position = LineIndex(before).position(len(before))
        if text.startswith((b"\xff\xfe", b"\xfe\xff")):
            problem, fix = "the file is UTF-16, Triton reads UTF-8", "save it as UTF-8 without BOM"
        elif b"\0" in text:
            problem, fix = "this is a binary file, Triton expects protobuf text format", "write it as text"
        else:
            problem, fix = "the file is not UTF-8", "save it as UTF-8 without BOM"
        raise ConfigSyntaxError(
            problem,
            path=path,
            line=position.line,
            column=position.column,
            offending=f"byte {text[error.start]:#04x}",
            fix=fix,
        ) from None


def _raise_at(text: str, offset: int, *, path: Path | str, problem: str, fix: str) -> None:
    position = LineIndex(text).position(offset)
    raise ConfigSyntaxError(
        problem,
        path=path,
        line=position.line,
        column=position.column,
        offending=_line_of(text, position.line),
        fix=fix,
    )


def _line_of(text: str, line: int) -> str:
    lines = text.split("\n")
    found = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return found if len(found) <= 100 else found[:97] + "…"


def _syntax_error(error: Exception, text: str, *, path: Path | str) -> ConfigSyntaxError:
    """Protobuf's complaint as ours: its position, a plain sentence and a fix."""
    message = str(error)
    line, column = _position_of(error, message)
    message = re.sub(r"^\d+:\d+ : ", "", message)
    message = message.rsplit("': ", 1)[-1] if message.startswith("'") else message
    if line is None:
        place = LineIndex(text).position(_likely_offset(message, text))
        line, column = place.line, place.column
    problem, fix = _explain(message, text)
    return ConfigSyntaxError(problem, path=path, line=line, column=column or 1, offending=_line_of(text, line), fix=fix)


def _position_of(error: Exception, message: str) -> tuple[int | None, int | None]:
    line = getattr(error, "GetLine", lambda: None)()
    column = getattr(error, "GetColumn", lambda: None)()
    if line is None and (match := re.match(r"(\d+):(\d+) : ", message)):
        return int(match.group(1)), int(match.group(2))
    return line, column


def _likely_offset(message: str, text: str) -> int:
    """Where a complaint without position belongs: at the number it names, else at the end of the text."""
    number = message.rpartition(" ")[2].lstrip("-")
    if number.isdigit():
        for token in tokens(text):
            if token.text == number:
                return token.offset
    return max(0, len(text.rstrip()) - 1)


def _explain(message: str, text: str) -> tuple[str, str]:
    if match := re.search(r'Message type "([\w.]+)" has no field named "([^"]+)"', message):
        return _unknown_field(match.group(1), match.group(2))
    if match := re.search(r'Enum type "([\w.]+)" has no value (?:named|with number) ([^\s]+?)\.?$', message):
        return _unknown_word(match.group(1), match.group(2))
    if match := re.search(r'should not have multiple "(\w+)" fields', message):
        return f"{match.group(1)!r} is given twice", "keep one of them"
    if match := re.search(r'"(\w+)" is specified along with (?:field )?"(\w+)"', message):
        return f"{match.group(1)!r} and {match.group(2)!r} exclude each other", "keep one of them"
    if "Expected identifier or number, got }" in message:
        return "a closing brace without an opening one", "remove it, or open the block it should close"
    if match := re.search(r"Expected identifier or number, got (['\"].+?)\.?$", message):
        return f"a field name was expected, not the string {match.group(1)}", "write field names without quotes"
    if match := re.search(r"Expected identifier or number, got (.+?)\.?$", message):
        return f"a field name was expected, not {match.group(1)}", "check commas, brackets and quotes just before it"
    if match := re.search(r"Value out of range: (-?\d+)", message):
        return _out_of_range(match.group(1))
    if match := re.search(r"Couldn't parse integer: (.+)$", message):
        return f"a whole number was expected, not {match.group(1)}", "write plain digits, such as 8, without quotes"
    if match := re.search(r"Expected string but found: '(.*)'$", message):
        return f"a quoted string was expected, not {match.group(1)}", f'write "{match.group(1)}"'
    if re.search(r'Expected ".+"', message) and _unclosed(text):
        return "the text ends inside a block or list", f"close it with {_unclosed(text)}"
    return message.rstrip("."), "compare the line with the Triton model configuration reference"


def _out_of_range(number: str) -> tuple[str, str]:
    if number.startswith("-"):
        return f"the number {number} must not be negative", "write 0 or a positive number"
    return f"the number {number} is too large for the field", "write a smaller number"


def _unclosed(text: str) -> str:
    """The closing marks that `text` still lacks, innermost first."""
    closing = {"{": "}", "[": "]", "<": ">"}
    stack: list[str] = []
    for token in tokens(text):
        if token.kind == "mark" and token.text in closing:
            stack.append(closing[token.text])
        elif stack and token.text == stack[-1]:
            stack.pop()
    return " ".join(reversed(stack))


def _descriptor(full_name: str) -> Any:
    from google.protobuf import descriptor_pool
    from tritonclient.grpc import model_config_pb2  # noqa: F401 - registers the schema in the pool

    return descriptor_pool.Default()


def _unknown_field(type_name: str, field: str) -> tuple[str, str]:
    fields = [f.name for f in _descriptor(type_name).FindMessageTypeByName(type_name).fields]
    close = _nearest(field, fields)
    where = "a model config" if type_name == "inference.ModelConfig" else type_name.removeprefix("inference.")
    fix = f"did you mean {close!r}?" if close else f"known fields are {', '.join(fields)}"
    return f"{where} has no field named {field!r}", fix


def _unknown_word(type_name: str, word: str) -> tuple[str, str]:
    words = [v.name for v in _descriptor(type_name).FindEnumTypeByName(type_name).values]
    prefix = words[0].split("_")[0] + "_"
    wire_names = {"BYTES": "TYPE_STRING", "FLOAT": "TYPE_FP32", "FLOAT32": "TYPE_FP32", "FLOAT16": "TYPE_FP16"}
    wire_names |= {"DOUBLE": "TYPE_FP64", "FLOAT64": "TYPE_FP64", "BFLOAT16": "TYPE_BF16"}
    bare = word.upper().removeprefix(prefix)
    candidate = f"{prefix}{bare}"
    if candidate not in words:
        candidate = wire_names.get(bare, "") if "TYPE_FP32" in words else ""
    close = candidate or _nearest(word.upper(), words)
    fix = f"write {close}" if close else f"one of {', '.join(words)}"
    return f"{type_name.removeprefix('inference.')} has no value named {word!r}", fix


def _nearest(word: str, known: list[str]) -> str | None:
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return close[0] if close else None
