"""What every section of the configuration has in common.

Above: `config`, and the sections that are modules of their own. Contract section 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from proxy.units import Count

AtLeastOne: TypeAlias = Annotated[Count, Field(ge=1)]


class Section(BaseModel):
    """Frozen, and closed: a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, values: Any) -> Any:
        """A section with nothing but comments in it is null in YAML; that means its defaults."""
        if not isinstance(values, Mapping):
            return values
        made = {name for name, field in cls.model_fields.items() if field.default_factory is not None}
        return {key: value for key, value in values.items() if value is not None or key not in made}
