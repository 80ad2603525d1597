"""The one error tree, split by what the caller can do about it.

    TritonstackError
    ├── InputError              fix what you passed in
    │   ├── UsageError          a flag, an argument or a spec key is wrong          (exit code 2)
    │   ├── TensorError         a tensor does not fit what the model wants
    │   ├── RepositoryError     a model repository or one of its files is wrong
    │   └── GateError           an export gate failed, so nothing was published
    ├── RetryError              wait and try again
    │   ├── ServerUnavailable   nothing answered, or the model is not ready
    │   └── DeadlineExceeded    no answer within the time allowed
    ├── ServerError             the server understood the request and refused or failed it
    ├── SetupError              fix the environment: a missing package, library, port or GPU
    └── InternalError           a defect of tritonstack: please report it

Every error names what was given, what was expected and what to do next, in one line.
"""

from __future__ import annotations

from typing import ClassVar


class TritonstackError(Exception):
    """Base of all errors raised on purpose.

    `summary` says what went wrong; `given`, `expected` and `next_step` complete the sentence where they help.
    `exit_code` is what the command returns for it: 1 failed, 2 wrong usage.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, summary: str, *, given: str | None = None, expected: str | None = None, next_step: str | None = None
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.given = given
        self.expected = expected
        self.next_step = next_step

    def __str__(self) -> str:
        parts = [self.summary]
        if self.given is not None:
            parts.append(f"given {self.given}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.next_step is not None:
            parts.append(f"next: {self.next_step}")
        return "; ".join(parts)

    def as_dict(self) -> dict[str, str | None]:
        """The error as JSON-ready values, for `--json`."""
        return {
            "kind": type(self).__name__,
            "summary": self.summary,
            "given": self.given,
            "expected": self.expected,
            "next": self.next_step,
        }


class InputError(TritonstackError):
    """Something passed in is wrong."""


class UsageError(InputError):
    """A flag, an argument or a key of a spec is wrong."""

    exit_code = 2


class TensorError(InputError):
    """A tensor's name, shape, dtype or content does not fit what the model wants."""


class RepositoryError(InputError):
    """A model repository or one of its files is wrong."""


class GateError(InputError):
    """An export gate failed; nothing was published."""


class RetryError(TritonstackError):
    """Waiting and trying again may help."""


class ServerUnavailable(RetryError):
    """Nothing answered at the address, or the model is not ready."""


class DeadlineExceeded(RetryError):
    """No answer came within the time allowed."""


class ServerError(TritonstackError):
    """The server answered with an error.

    `code` is the server's own status: a gRPC status name (``INVALID_ARGUMENT``) or ``HTTP 400``.
    """

    def __init__(
        self,
        summary: str,
        *,
        code: str,
        given: str | None = None,
        expected: str | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(summary, given=given, expected=expected, next_step=next_step)
        self.code = code


class SetupError(TritonstackError):
    """The environment lacks something: a package, a shared library, a free port, a GPU."""


class InternalError(TritonstackError):
    """A defect of tritonstack itself."""


def missing_package(package: str, *, needed_for: str, install: str) -> SetupError:
    """The error for an import that failed, with the exact line that mends it."""
    return SetupError(f"{needed_for} needs the package {package!r}, which is not installed", next_step=install)
