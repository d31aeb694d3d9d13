"""The pretraining loop and what it is told."""

from .arguments import PretrainArguments, list_recipes, parse_command_line, read_recipe

__all__ = ["PretrainArguments", "list_recipes", "parse_command_line", "read_recipe"]
