"""What the models of the spec share: refusing unknown keys, and numbers that are no booleans."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Strict(BaseModel):
    """A part of the spec: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def no_bool(value: object) -> object:
    """YAML's `true` would pass for 1 in pydantic's lax mode."""
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


Count = Annotated[int, BeforeValidator(no_bool), Field(ge=1, le=2**31 - 1)]
Size = Annotated[int, BeforeValidator(no_bool), Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, BeforeValidator(no_bool), Field(allow_inf_nan=False)]
Positive = Annotated[float, BeforeValidator(no_bool), Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, BeforeValidator(no_bool), Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1, allow_inf_nan=False)]
