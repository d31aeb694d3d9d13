"""Generation settings, from keyword arguments, a configuration, or the model's own configuration."""

from collections.abc import Callable, Iterable
from copy import copy
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from transformers import GenerationConfig

Arguments = ParamSpec("Arguments")
Output = TypeVar("Output")

_BOUNDS = {"max_length", "max_new_tokens"}


def setting(name: str, sources: Iterable[object]) -> Any:
    """The first value of a setting that is not None in dictionaries or configurations."""
    found = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for source in sources)
    return next((value for value in found if value is not None), None)


def take_settings(config: GenerationConfig | None, kwargs: dict[str, Any]) -> None:
    """Adds the settings of a configuration to keyword arguments, which take precedence; removes a `use_cache` of None,
    which transformers would misread."""
    names = vars(GenerationConfig()).keys() - {"transformers_version", "_from_model_config"}
    if any(kwargs.get(bound) is not None for bound in _BOUNDS):
        names -= _BOUNDS
    # An explicit None means that no token ends a text.
    names -= {"eos_token_id"} & kwargs.keys()
    for name in names:
        if kwargs.get(name) is None and getattr(config, name, None) is not None:
            kwargs[name] = getattr(config, name)
    if kwargs.get("use_cache", True) is None:
        # transformers would search as if there were no cache, but the model makes one all the same.
        del kwargs["use_cache"]


def by_own_settings(generate: Callable[Arguments, Output]) -> Callable[Arguments, Output]:
    """Treats transformers' defaults in a model's generation configuration as unset: its Seq2SeqTrainer writes them
    there, and their bound of 20 tokens would cut all later texts."""

    @wraps(generate)
    def with_own_settings(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Output:
        model: Any = args[0]
        # A model without a decoder has none.
        given = getattr(model, "generation_config", None) or GenerationConfig()
        defaults = given._get_default_generation_params()
        if given.max_length != defaults["max_length"]:
            return generate(*args, **kwargs)
        model.generation_config = copy(given)
        for name, value in defaults.items():
            if name != "use_cache" and getattr(given, name, None) == value:
                setattr(model.generation_config, name, None)
        try:
            return generate(*args, **kwargs)
        finally:
            model.generation_config = given

    return with_own_settings
