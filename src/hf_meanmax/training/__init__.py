"""Pretraining, fine-tuning and their settings."""

from .recipes import list_recipes, parse_command_line, read_recipe
from .settings import PretrainArguments

__all__ = ["PretrainArguments", "list_recipes", "parse_command_line", "read_recipe"]
