"""The settings of a generation: those given by name, those of a configuration, and the model's own."""

from collections.abc import Callable, Iterable
from copy import copy
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from transformers import GenerationConfig

Arguments = ParamSpec("Arguments")
Output = TypeVar("Output")

_BOUNDS = {"max_length", "max_new_tokens"}


def setting(name: str, sources: Iterable[object]) -> Any:
    """The first value of a setting, in dictionaries or configurations, that is not None."""
    found = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for source in sources)
    return next((value for value in found if value is not None), None)


def take_settings(config: GenerationConfig | None, kwargs: dict[str, Any]) -> None:
    """Puts what a configuration sets beside the settings that were given by name, which win over it; of these, a None
    that transformers would misread is left out."""
    names = vars(GenerationConfig()).keys() - {"transformers_version", "_from_model_config"}
    if any(kwargs.get(bound) is not None for bound in _BOUNDS):
        names -= _BOUNDS
    # None says that no word is an end.
    names -= {"eos_token_id"} & kwargs.keys()
    for name in names:
        if kwargs.get(name) is None and getattr(config, name, None) is not None:
            kwargs[name] = getattr(config, name)
    if kwargs.get("use_cache", True) is None:
        # transformers would search without a cache that the model makes all the same.
        del kwargs["use_cache"]


def by_own_settings(generate: Callable[Arguments, Output]) -> Callable[Arguments, Output]:
    """Takes transformers' defaults, which its Seq2SeqTrainer writes into a model's generation configuration, for unset:
    their bound of 20 tokens would cut each text that follows."""

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
