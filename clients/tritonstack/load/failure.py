"""How failed requests are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritonstack import errors
from tritonstack.errors import DeadlineExceeded, InternalError, ServerError, ServerUnavailable, TritonstackError

UNAVAILABLE = "ServerUnavailable"
WRONG_ANSWER = "ValidationFailed"
CANCELLED = "Cancelled"
"""What the load tester took back on purpose; no failure of the server, and not counted as one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How one failed request is counted. `retreat`: nothing is listening, so a closed loop should pause."""

    kind: str
    message: str
    retreat: bool = False


def classify(error: Exception) -> Failure | None:
    """How a failed request is counted; None for what is no failure of a request but a defect."""
    if isinstance(error, ServerError):
        return Failure(f"ServerError {error.code}", error.summary)
    if isinstance(error, ServerUnavailable):
        return Failure(UNAVAILABLE, error.summary, retreat=True)
    if isinstance(error, DeadlineExceeded):
        return Failure("DeadlineExceeded", error.summary)
    return None


def failure_of(error: Exception) -> tuple[str, str]:
    """Kind and message of the error of a request. Raises InternalError for one that no request can have."""
    failure = classify(error)
    if failure is None:
        raise InternalError(f"{type(error).__name__} is no failure of a request: {error}")
    return failure.kind, failure.message


def error_from(body: Mapping[str, str | None]) -> TritonstackError:
    """The error that `TritonstackError.as_dict` described, in another process."""
    words = {"given": body.get("given"), "expected": body.get("expected"), "next_step": body.get("next")}
    summary = body.get("summary") or "a worker failed"
    kind = getattr(errors, str(body.get("kind")), None)
    if isinstance(kind, type) and issubclass(kind, TritonstackError) and kind is not ServerError:
        return kind(summary, **words)
    return InternalError(summary, **words)
