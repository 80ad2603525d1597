"""The precisions by name, for parsers that import nothing heavy."""

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
"""In the order in which variants are made: the later ones are derived from the first and compared with it."""
