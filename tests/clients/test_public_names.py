"""The public door of `tritonstack`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import tritonstack

SOURCE = Path(tritonstack.__file__)


def test_every_public_name_exists_and_nothing_else_is_listed() -> None:
    for name in tritonstack.__all__:
        assert getattr(tritonstack, name) is not None
    assert sorted(tritonstack.__all__) == sorted([*tritonstack._HOME, "__version__"])
    assert [*tritonstack.__all__] == sorted(tritonstack.__all__)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(SOURCE.read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == tritonstack._HOME


def test_importing_does_nothing() -> None:
    code = (
        "import sys, tritonstack\n"
        "heavy = {'numpy', 'grpc', 'tritonclient', 'PIL', 'google.protobuf', 'logging'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import tritonstack.infer.command\n"
        "heavy = {'numpy', 'grpc', 'tritonclient', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
