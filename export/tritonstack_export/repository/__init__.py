"""The model repository on disk: config text, layout of an entry, manifest of a version."""

from tritonstack_export.repository.config_text import (
    ConfigSyntaxError,
    ModelConfig,
    parse_config,
    read_config_text,
    render_config,
)

__all__ = ["ConfigSyntaxError", "ModelConfig", "parse_config", "read_config_text", "render_config"]
