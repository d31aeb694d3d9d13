"""The pretraining loop and what it is told."""

from .settings import PretrainArguments, list_recipes, parse_command_line, read_recipe

__all__ = ["PretrainArguments", "list_recipes", "parse_command_line", "read_recipe"]
