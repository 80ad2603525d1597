"""Why an engine was not built."""

from __future__ import annotations

from tritonstack.errors import TritonstackError


class EngineError(TritonstackError):
    """TensorRT did not build an engine. `kind` says what failed; `node` and `operator` are the place in the ONNX graph.

    Kinds: import, old, gpu, parse, empty, precision, unsupported, profile, plugin, build, memory, write, timeout, died.
    `log`: TensorRT's own last lines. `next_step` is the remedy.
    """

    def __init__(
        self,
        summary: str,
        *,
        kind: str,
        node: str | None = None,
        operator: str | None = None,
        log: tuple[str, ...] = (),
        given: str | None = None,
        expected: str | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(summary, given=given, expected=expected, next_step=next_step)
        self.kind = kind
        self.node = node
        self.operator = operator
        self.log = log

    @property
    def remedy(self) -> str | None:
        """What to change, in one sentence."""
        return self.next_step

    def as_dict(self) -> dict[str, str | None]:
        """The error as JSON-ready values, with the place in the graph and TensorRT's last lines."""
        place = {"engine_kind": self.kind, "node": self.node, "operator": self.operator}
        return {**super().as_dict(), **place, "log": "\n".join(self.log) or None}
