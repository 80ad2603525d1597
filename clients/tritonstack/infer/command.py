"""The command `tritonstack infer`."""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from tritonstack.arguments import Parser, some_path, whole_number
from tritonstack.errors import UsageError

if TYPE_CHECKING:
    from tritonstack.client.blocking import Client
    from tritonstack.infer.images import ClassifiedImages

_EXAMPLES = """\
examples:
  tritonstack infer efficientnet_lite0 --image cat.jpg dog.png
  tritonstack infer adder --input 'x=[[1, 2, 3]]' --json
  tritonstack infer encoder --input ids=@ids.npy --input mask=@batch.npz --output embedding
"""


def _seconds(text: str) -> float:
    import argparse

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected seconds above 0")
    return value


def _parser() -> Parser:
    parser = Parser(
        prog="tritonstack infer",
        usage="%(prog)s MODEL (--image FILE … | --input NAME=VALUE …) [options]",
        formatter_class=lambda prog: RawDescriptionHelpFormatter(prog, max_help_position=26, width=100),
        description="Send one inference request to a Triton server and show the answer.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="name of the served model")
    parser.add_argument(
        "--url", default="127.0.0.1:8001", help="host:port, grpc://… or http://… (default: %(default)s)"
    )
    parser.add_argument("--protocol", choices=("grpc", "http"), help="for a --url without one (default: grpc)")
    parser.add_argument("--version", default="", metavar="V", help="model version (default: the server's choice)")
    parser.add_argument(
        "--image", nargs="+", action="extend", type=some_path, default=[], metavar="FILE", help="classify pictures"
    )
    parser.add_argument("--top", type=whole_number(1), metavar="K", help="classes to show per picture (default: 5)")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=VALUE", help="JSON, @file.npy or @file.npz; repeatable"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=DIMS", help="reshape an input first: x=1,3; repeatable"
    )
    parser.add_argument("--output", nargs="+", action="extend", metavar="NAME", help="outputs to return (default: all)")
    parser.add_argument("--timeout", type=_seconds, default=60.0, metavar="S", help="deadline in seconds (default: 60)")
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    return parser


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    from tritonstack.client.blocking import Client

    with Client(arguments.url, protocol=arguments.protocol, timeout_s=arguments.timeout) as client:
        if arguments.image:
            _show_classes(client, arguments)
        else:
            _show_outputs(client, arguments)
    return 0


def _check(arguments: Namespace) -> None:
    if not arguments.image and not arguments.input:
        raise UsageError("nothing to send", expected="--image FILE or --input NAME=VALUE")
    if arguments.image and (arguments.input or arguments.output or arguments.shape):
        raise UsageError("--image goes without --input, --shape and --output")
    if arguments.top is not None and not arguments.image:
        raise UsageError("--top goes with --image")
    if arguments.version and not (arguments.version.isascii() and arguments.version.isdigit()):
        raise UsageError("bad --version", given=repr(arguments.version), expected="a whole number")


def _show_classes(client: Client, arguments: Namespace) -> None:
    from tritonstack.infer.images import classify_images
    from tritonstack.terminal import print_json

    answer = classify_images(
        client,
        arguments.model,
        arguments.image,
        version=arguments.version,
        top=arguments.top or 5,
        timeout_s=arguments.timeout,
    )
    if arguments.json:
        print_json(_classes_as_json(answer))
    elif answer.model_version:
        _print_classes(answer)
    answer.require_all()


def _print_classes(answer: ClassifiedImages) -> None:
    from tritonstack.infer.images import UnreadableImage

    for image in answer.images:
        print(image.file)
        if isinstance(image, UnreadableImage):
            print(f"  not sent: {image.error.summary}")
            continue
        for scored in image.classes:
            print(f"  {scored.probability:7.2%}  {scored.label or f'class {scored.index}'}")
    print(f"answered by {answer.model} version {answer.model_version}")


def _classes_as_json(answer: ClassifiedImages) -> dict[str, Any]:
    from tritonstack.infer.images import UnreadableImage

    return {
        "model": answer.model,
        "model_version": answer.model_version,
        "images": [
            {"file": str(image.file), "classes": [], "error": image.error.summary}
            if isinstance(image, UnreadableImage)
            else {
                "file": str(image.file),
                "classes": [{"index": c.index, "label": c.label, "probability": c.probability} for c in image.classes],
            }
            for image in answer.images
        ],
    }


def _show_outputs(client: Client, arguments: Namespace) -> None:
    from tritonstack.infer.literal import parse_shapes, read_inputs
    from tritonstack.infer.rendering import outputs_as_json, outputs_table
    from tritonstack.terminal import print_json

    metadata = client.metadata(arguments.model, arguments.version)
    inputs = read_inputs(arguments.input, parse_shapes(arguments.shape), metadata.inputs)
    # JSON has one kind of number, so its values take the model's data type; arrays from files keep their own.
    literals = [name for name, _, value in (text.partition("=") for text in arguments.input) if value[:1] != "@"]
    result = client.infer(arguments.model, inputs, outputs=arguments.output, version=arguments.version, cast=literals)
    if arguments.json:
        print_json(outputs_as_json(result))
        return
    print(outputs_table(result))
    print(f"answered by {result.model_name} version {result.model_version}")
