"""`tritonstack engines`: what lies in the engine cache, and what can go."""

from __future__ import annotations

import argparse
import re
from typing import Any

from tritonstack.arguments import Parser, byte_size, some_path

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = _parser().parse_args(argv)
    from tritonstack.terminal import human_bytes, print_json
    from tritonstack_export.engine.cache import EngineCache, default_root
    from tritonstack_export.engine.cache_content import entries, sweep

    cache = EngineCache(arguments.cache or default_root())
    if arguments.verb == "ls":
        found = entries(cache)
        if arguments.json:
            print_json({"cache": str(cache.root), "engines": [entry.as_dict() for entry in found]})
        else:
            print(_table([entry.as_dict() for entry in found]) if found else f"no engines in {cache.root}")
        return 0
    removed, busy = sweep(
        cache,
        older_than_s=arguments.older_than,
        max_bytes=arguments.max_bytes,
        tensorrt=arguments.tensorrt,
        dry_run=arguments.dry_run,
    )
    total = sum(item.size_bytes for item in removed)
    if arguments.json:
        print_json(
            {
                "cache": str(cache.root),
                "dry_run": arguments.dry_run,
                "removed": [item.as_dict() for item in removed],
                "in_use": busy,
                "bytes": total,
            }
        )
        return 0
    word = "would remove" if arguments.dry_run else "removed"
    for item in removed:
        print(f"{word} {item.path} ({human_bytes(item.size_bytes)}): {item.reason}")
    for key in busy:
        print(f"kept {cache.folder(key)}: in use")
    print(f"{word} {len(removed)} of {cache.root}, {human_bytes(total)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tritonstack engines",
        description="Look at the cache that `tritonstack build-engines` fills, and clean it.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="ls|gc", required=True)
    common = Parser(add_help=False)
    common.add_argument(
        "--cache",
        type=some_path,
        metavar="DIR",
        help="the engine cache (default: $TRITONSTACK_CACHE/engines, else ~/.cache/tritonstack/engines)",
    )
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    verbs.add_parser("ls", parents=[common], help="list the engines, the least recently used first")
    gc = verbs.add_parser(
        "gc",
        parents=[common],
        help="remove what builds that were stopped left behind, and engines by the flags; none that is in use",
    )
    gc.add_argument("--older-than", type=_duration, metavar="AGE", help="engines unused for so long: 30d, 12h")
    gc.add_argument(
        "--max-bytes", type=byte_size, metavar="SIZE", help="the least recently used, until so much is left: 20G"
    )
    gc.add_argument("--tensorrt", type=_version, metavar="VERSION", help="engines built with it: 10.14 or 10.14.1")
    gc.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    return parser


def _duration(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected an age such as 30d, 12h or 45m")
    return float(match[1]) * _UNITS_S[match[2]]


def _version(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,4}){1,3}", text):
        raise argparse.ArgumentTypeError(f"given {text!r}; expected a version such as 10.14 or 10.14.1")
    return text


def _table(rows: list[dict[str, Any]]) -> str:
    from tritonstack.terminal import human_bytes, table

    def shown(row: dict[str, Any]) -> list[str]:
        capability = str(row["compute_capability"] or "?").replace(".", "")
        return [
            str(row["key"])[:12],
            str(row["model"] or "?"),
            str(row["tensorrt"] or "?"),
            f"sm_{capability}",
            str(row["precision"] or "?"),
            human_bytes(row["size_bytes"]),
            str(row["built_at"] or "?"),
            _age(row["unused_s"]),
        ]

    header = ("key", "model", "tensorrt", "gpu", "precision", "size", "built", "unused for")
    return table(header, map(shown, rows), align="<<<<<><>")


def _age(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
