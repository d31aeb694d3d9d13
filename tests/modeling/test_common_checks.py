"""What transformers checks of its own models, on one model of each kind.

Its test bodies (`tests/test_modeling_common.py`, `tests/generation/test_utils.py` of 5.15) are not in the wheel, so the
checks are written anew. `CHECKS` has all of theirs: where each is, or why it does not hold for a model whose encoder
gives a fixed Z.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.utils.prune
from transformers import (
    AutoConfig,
    BitsAndBytesConfig,
    LogitsProcessor,
    LogitsProcessorList,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from modeling.family_tests import IGNORE, WarningRecorder, close, pad
from modeling.kinds import GENERATING, KINDS, labels, make, read, same

HERE = "test_common_checks.py"
FAMILY = "family_tests.py::FamilyTests"
PEFT = "test_peft.py"
GPUS = "needs several GPUs"
FLASH = "needs a GPU's kernels; the two backends of a CPU agree"

CHECKS = {
    # ModelTesterMixin
    "test_save_load": f"{FAMILY}::test_every_loader_gives_the_saved_model",
    "test_save_load_keys_to_ignore_on_save": "no key is left out of a checkpoint but a tied one",
    "test_from_pretrained_no_checkpoint": f"{HERE}::test_made_from_a_state_dict_alone",
    "test_keep_in_fp32_modules": "no module asks to stay in float32",
    "test_load_contiguous_weights": f"{FAMILY}::test_every_loader_gives_the_saved_model",
    "test_gradient_checkpointing_enable_disable": f"{FAMILY}::test_gradient_checkpointing_changes_nothing",
    "test_gradient_checkpointing_backward_compatibility": "the old way, a field of the configuration, was never there",
    "test_peft_gradient_checkpointing_enable_disable": f"{PEFT}::test_gradient_checkpointing",
    "test_can_init_all_missing_weights": f"{FAMILY}::test_missing_weights_are_initialised",
    "test_init_weights_can_init_buffers": f"{FAMILY}::test_missing_weights_are_initialised",
    "test_initialization": f"{FAMILY}::test_missing_weights_are_initialised",
    "test_all_tensors_are_parameter_or_buffer": f"{HERE}::test_every_tensor_is_a_parameter_or_a_buffer",
    "test_torch_save_load": f"{HERE}::test_copies_compute_the_same",
    "test_determinism": f"{HERE}::test_copies_compute_the_same",
    "test_batching_equivalence": f"{FAMILY}::test_padding_changes_nothing",
    "test_training": f"{FAMILY}::test_every_parameter_learns",
    "test_training_gradient_checkpointing": f"{FAMILY}::test_gradient_checkpointing_changes_nothing",
    "test_causal_lm_can_accept_kwargs": f"{FAMILY}::test_losses_of_the_model_agree",
    "test_attention_outputs": f"{FAMILY}::test_recorded_states_and_attentions",
    "test_hidden_states_output": f"{FAMILY}::test_recorded_states_and_attentions",
    "test_retain_grad_hidden_states_attentions": f"{HERE}::test_gradients_reach_what_is_recorded",
    "test_capture_outputs_decorator": f"{HERE}::test_the_encoder_is_recorded_through_the_whole_model",
    "test_feed_forward_chunking": "the layers have no chunked feed-forward",
    "test_resize_position_vector_embeddings": "a learned table keeps its size; positions beyond it have no code",
    "test_resize_tokens_embeddings": f"{FAMILY}::test_resized_vocabulary_is_saved_and_loaded",
    "test_resize_embeddings_untied": f"{FAMILY}::test_resized_vocabulary_is_saved_and_loaded",
    "test_model_get_set_embeddings": f"{HERE}::test_tables_are_given_and_taken",
    "test_model_main_input_name": f"{HERE}::test_tables_are_given_and_taken",
    "test_correct_missing_keys": f"{FAMILY}::test_loading_is_silent",
    "test_tie_model_weights": f"{FAMILY}::test_tied_output_is_the_word_table",
    "test_tied_weights_keys": f"{FAMILY}::test_tied_output_is_the_word_table",
    "test_model_weights_reload_no_missing_tied_weights": f"{FAMILY}::test_tied_output_is_the_word_table",
    "test_model_outputs_equivalence": f"{HERE}::test_a_tuple_holds_what_the_named_output_does",
    "test_inputs_embeds": f"{FAMILY}::test_word_vectors_in_place_of_ids",
    "test_inputs_embeds_matches_input_ids": f"{HERE}::test_vectors_for_the_decoder_in_place_of_ids",
    "test_problem_types": "test_classifiers.py::test_kinds_of_labels",
    "test_load_with_mismatched_shapes": f"{HERE}::test_weights_of_other_shapes_are_made_anew",
    "test_mismatched_shapes_have_properly_initialized_weights": f"{HERE}::test_weights_of_other_shapes_are_made_anew",
    "test_can_be_initialized_on_meta": f"{HERE}::test_made_and_loaded_on_a_device",
    "test_can_load_with_device_context_manager": f"{HERE}::test_made_and_loaded_on_a_device",
    "test_can_load_with_meta_device_context_manager": "transformers refuses to load weights where there is no memory",
    "test_bc_torch_dtype": f"{HERE}::test_made_and_loaded_on_a_device",
    "test_model_is_small": f"{HERE}::test_every_tensor_is_a_parameter_or_a_buffer",
    "test_cpu_offload": f"{HERE}::test_weights_on_the_disk",
    "test_disk_offload_bin": "no pickle is read from a checkpoint",
    "test_disk_offload_safetensors": f"{HERE}::test_weights_on_the_disk",
    "test_model_parallelism": GPUS,
    "test_multi_gpu_data_parallel_forward": GPUS,
    "test_eager_matches_sdpa_inference": f"{FAMILY}::test_attention_backends_agree",
    "test_sdpa_can_dispatch_non_composite_models": f"{FAMILY}::test_attention_backends_agree",
    "test_sdpa_can_dispatch_on_flash": FLASH,
    "test_flash_attn_2_inference_equivalence": FLASH,
    "test_flex_attention_with_grads": FLASH,
    "test_sdpa_can_compile_dynamic": f"{FAMILY}::test_training_step_compiles_in_one_graph",
    "test_torch_compile_for_training": f"{FAMILY}::test_training_step_compiles_in_one_graph",
    "test_torch_export": f"{HERE}::test_exported_with_a_free_length",
    "test_custom_4d_attention_mask": "poolings and recurrent layers count tokens, so a mask has a row for each text",
    "test_forward_with_num_logits_to_keep": "the loss needs every score, and a step of generation reads one word",
    "test_generation_tester_mixin_inheritance": f"{HERE}::test_who_can_generate",
    "test_config": f"{HERE}::test_configurations_are_those_of_transformers",
    "test_internal_model_config_and_subconfig_are_same": "there is one configuration, without parts",
    "test_reverse_loading_mapping": "no weight is renamed when it is loaded",
    "test_tp_plan_matches_params": "no plan of tensor parallelism is declared",
    # GenerationTesterMixin
    "test_greedy_generate": f"{FAMILY}::test_greedy_search_by_hand",
    "test_greedy_generate_dict_outputs": f"{HERE}::test_what_generation_records",
    "test_greedy_generate_dict_outputs_use_cache": f"{HERE}::test_what_generation_records",
    "test_sample_generate": f"{FAMILY}::test_cache_changes_nothing",
    "test_sample_generate_dict_output": f"{HERE}::test_what_generation_records",
    "test_beam_search_generate": f"{FAMILY}::test_cache_changes_nothing",
    "test_beam_search_generate_dict_output": f"{HERE}::test_what_generation_records",
    "test_beam_search_generate_dict_outputs_use_cache": f"{HERE}::test_what_generation_records",
    "test_beam_sample_generate": f"{HERE}::test_what_generation_records",
    "test_model_parallel_beam_search": GPUS,
    "test_generate_without_input_ids": f"{FAMILY}::test_generation_takes_one_source",
    "test_assisted_decoding_matches_greedy_search": f"{HERE}::test_an_assistant_changes_nothing",
    "test_prompt_lookup_decoding_matches_greedy_search": f"{HERE}::test_an_assistant_changes_nothing",
    "test_prompt_lookup_decoding_stops_at_eos": f"{HERE}::test_an_assistant_changes_nothing",
    "test_assisted_decoding_sample": "the draws of the two differ, so nothing is equal to anything",
    "test_left_padding_compatibility": f"{FAMILY}::test_prompts_of_unlike_lengths",
    "test_past_key_values_format": f"{HERE}::test_a_decoding_loop_by_hand",
    "test_generate_from_random_inputs_embeds": f"{HERE}::test_generation_from_vectors_of_the_words",
    "test_generate_from_inputs_embeds": f"{HERE}::test_generation_from_vectors_of_the_words",
    "test_generate_from_inputs_embeds_with_static_cache": f"{HERE}::test_generation_from_vectors_of_the_words",
    "test_generate_continue_from_past_key_values": f"{HERE}::test_generation_goes_on_from_a_cache",
    "test_generate_continue_from_inputs_embeds": "what the decoder goes on from are ids",
    "test_generate_with_static_cache": f"{FAMILY}::test_cache_changes_nothing",
    "test_generate_with_quant_cache": "needs the packages of a quantised cache",
    "test_generate_compile_model_forward_fullgraph": FLASH,
    "test_generate_methods_with_logits_to_keep": "forward has no such argument",
    "test_generate_with_and_without_position_ids": "places are counted on the masks; `position_ids` are refused",
    "test_prepare_inputs_for_generation_kwargs_forwards": f"{HERE}::test_no_argument_is_swallowed",
    "test_inherits_generation_mixin": f"{HERE}::test_who_can_generate",
    "test_generation_encoder_processors": f"{HERE}::test_settings_that_look_at_the_text",
    "test_cross_attention_cache": "keys and values of a few rows are computed at each step, not kept",
}


def test_the_tests_of_the_checks_are_there():
    import modeling.family_tests as family_tests
    import modeling.test_classifiers as test_classifiers

    modules = {
        HERE: globals(),
        FAMILY.split("::")[0]: vars(family_tests.FamilyTests),
        "test_classifiers.py": vars(test_classifiers),
        PEFT: vars(pytest.importorskip("modeling.test_peft", exc_type=ImportError)),
    }
    for check, answer in CHECKS.items():
        if "::" in answer:
            path, *_, name = answer.split("::")
            assert name in modules[path], check
        else:
            assert " " in answer, f"{check} has no reason"


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=GENERATING)
def generating(request):
    return request.param


# Outputs


def test_a_tuple_holds_what_the_named_output_does(kind):
    model = make(kind)
    model.set_attn_implementation("eager")
    inputs = {**read(kind), **labels(kind), "output_hidden_states": True, "output_attentions": True}
    named = model(**inputs)
    plain = model(**inputs, return_dict=False)
    assert isinstance(plain, tuple)
    assert same(plain, named.to_tuple())


def test_copies_compute_the_same(kind):
    """Twice the model itself, then what copying, pickling and torch.save make of it."""
    model, inputs = make(kind), {**read(kind), **labels(kind)}
    with torch.inference_mode():
        expected = model(**inputs)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies = (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False))
        for other in copies:
            assert same(other(**inputs), expected)


def test_gradients_reach_what_is_recorded(kind):
    if kind == "static":
        pytest.skip("Z is made of the word vectors alone, not of the states")
    model = make(kind)
    model.set_attn_implementation("eager")
    output = model(**read(kind), **labels(kind), output_hidden_states=True, output_attentions=True)
    # The weights of an attention that goes step by step are put together for the record alone.
    left_out = "cross_attentions" if model.config.decoder_type == "conditional_gru" else None
    recorded = [
        tensor
        for name, states in output.items()
        if name.endswith(("hidden_states", "attentions")) and isinstance(states, tuple) and name != left_out
        for tensor in states
    ]
    for tensor in recorded:
        if not tensor.is_leaf:
            tensor.retain_grad()
    (output.pooler_output.square().sum() if "loss" not in output else output.loss).backward()
    assert recorded
    assert all(tensor.grad is not None for tensor in recorded if tensor.requires_grad)


@pytest.mark.parametrize("kind", [*GENERATING, "words"])
def test_the_encoder_is_recorded_through_the_whole_model(kind):
    if kind == "of_vectors":
        pytest.skip("a map of a vector has no layers to record")
    model, inputs = make(kind), read(kind)
    model.set_attn_implementation("eager")
    recorded = {"output_hidden_states": True, "output_attentions": True}
    encoded = model.get_encoder()(**inputs, **recorded)
    for output in (
        model(**inputs, **labels(kind), **recorded),
        model(encoder_outputs=encoded, **labels(kind), attention_mask=inputs["attention_mask"], **recorded),
    ):
        assert len(output.encoder_hidden_states) == model.config.num_hidden_layers + 1
        assert same(output.encoder_hidden_states, encoded.hidden_states)
        assert same(output.encoder_attentions, encoded.attentions)
    assert model(**inputs, **labels(kind)).encoder_hidden_states is None


# Weights


def test_every_tensor_is_a_parameter_or_a_buffer(kind):
    model = make(kind)
    for module in model.modules():
        loose = [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
        assert loose == [], type(module)
    assert model.num_parameters() < 1e6


def test_made_from_a_state_dict_alone(kind):
    model, inputs = make(kind), {**read(kind), **labels(kind)}
    again = type(model).from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert same(again(**inputs), model(**inputs))


def test_made_and_loaded_on_a_device(kind, tmp_path):
    model = make(kind)
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        assert all(value.is_meta for value in type(model)(model.config).parameters())
    with torch.device("cpu"):
        loaded = type(model).from_pretrained(tmp_path)
    inputs = {**read(kind), **labels(kind)}
    assert same(loaded(**inputs), model(**inputs))
    half = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {value.dtype for value in half.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
    assert half.config.dtype == torch.bfloat16


def test_weights_of_other_shapes_are_made_anew(kind, tmp_path):
    make(kind).save_pretrained(tmp_path)
    model_class = type(make(kind))
    other = {"vocab_size": 60, "input_vocab_size": 60}
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        model_class.from_pretrained(tmp_path, **other)
    loaded = model_class.from_pretrained(tmp_path, ignore_mismatched_sizes=True, **other)
    assert loaded.get_input_embeddings().num_embeddings == 60
    for name, value in loaded.named_parameters():
        assert value.isfinite().all(), name
        assert value.abs().max() < 100, name


def test_tables_are_given_and_taken(kind):
    model, inputs = make(kind, tie_word_embeddings=False), read(kind)
    table = model.get_input_embeddings()
    assert type(table) is torch.nn.Embedding
    new = torch.nn.Embedding(table.num_embeddings, table.embedding_dim)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings() is new
    before = model(**inputs, **labels(kind))
    with torch.no_grad():
        new.weight.normal_()
    key = "logits" if "logits" in before else "pooler_output"
    assert not torch.equal(model(**inputs, **labels(kind))[key], before[key])
    output = model.get_output_embeddings()
    assert output is None or type(output) is torch.nn.Linear
    assert model.main_input_name == next(iter(inputs))


@pytest.mark.parametrize(
    ("generating", "part"),
    [*((kind, "encoder") for kind in GENERATING), ("conditional_gru", "decoder"), ("gates", "lm_head")],
)
def test_weights_on_the_disk(generating, part, tmp_path):
    """`device_map` puts them there, and every part reads its own when it is called."""
    # Tied weights could not be in two places.
    model, inputs = make(generating, tie_word_embeddings=False), read(generating)
    model.save_pretrained(tmp_path / "model")
    places = dict.fromkeys((name.split(".")[0] for name, _ in model.named_parameters()), "cpu") | {part: "disk"}
    loaded = type(model).from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk")
    assert all(value.is_meta for value in getattr(loaded, part).parameters())
    assert torch.equal(loaded.generate(**inputs, max_new_tokens=5), model.generate(**inputs, max_new_tokens=5))
    if not model.config.has_latents or generating == "of_vectors":
        return
    vectors = {"sentence_embedding": model.encoder(**inputs).pooler_output.detach(), "max_new_tokens": 5}
    if part == "encoder" and model.config.latent_scales:
        with pytest.raises(ValueError, match="keep the encoder in memory"):
            loaded.generate(**vectors)
    else:
        assert torch.equal(loaded.generate(**vectors), model.generate(**vectors))


@pytest.mark.parametrize("how", ["pruned", "wrapped"])
def test_convolutions_whose_weights_are_made_when_they_are_called(how):
    """As those of pruning, and of PEFT."""

    class Wrapped(torch.nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer

        def forward(self, states):
            return self.base_layer(states)

    model = make("words")
    inputs = {**read("words"), **labels("words")}
    plain = model(**inputs).loss
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Conv1d and how == "wrapped":
                setattr(module, name, Wrapped(child))
            elif type(child) is torch.nn.Conv1d:
                torch.nn.utils.prune.identity(child, "weight")
    for _ in range(2):
        loss = model(**inputs).loss
        loss.backward()
        torch.testing.assert_close(loss, plain)


# Configuration


def test_configurations_are_those_of_transformers(kind, tmp_path):
    config = make(kind).config
    config.to_json_file(tmp_path / "config.json")
    for other in (type(config).from_json_file(tmp_path / "config.json"), type(config).from_dict(config.to_dict())):
        assert other.to_dict() == config.to_dict()
    assert type(config)().to_dict()["model_type"] == config.model_type
    for name, value in (("output_hidden_states", True), ("num_labels", 5), ("use_cache", False)):
        assert getattr(type(config)(**{name: value}), name) == value
    assert config.hidden_size == 32
    assert config.num_attention_heads == 4


def test_what_a_saved_configuration_holds_beside_its_fields(kind, tmp_path):
    """It loads, with one warning, and is saved again; the constructor takes no such thing."""
    model = make(kind)
    model.config.note, model.config.hiden_size = "x", 3
    model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    model.config.save_pretrained(tmp_path)
    with WarningRecorder("transformers") as _, WarningRecorder("hf_meanmax") as messages:
        loaded = AutoConfig.from_pretrained(tmp_path)
    (message,) = messages
    assert "no setting named `note`." in message
    assert "no setting named `hiden_size`. Did you mean `hidden_size`?" in message
    assert "quantization" not in message
    loaded.save_pretrained(tmp_path / "again")
    again = AutoConfig.from_pretrained(tmp_path / "again")
    assert (again.note, again.hiden_size, again.hidden_size) == ("x", 3, 32)
    assert again.quantization_config["load_in_8bit"] is True
    del model.config.quantization_config
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.note == "x"
    with pytest.raises(TypeError, match="no setting named `note`"):
        type(model.config)(note="x")


# Arguments


def test_no_argument_is_swallowed(kind):
    model, inputs = make(kind), read(kind)
    parts = [model, *(getattr(model, name) for name in ("encoder",) if hasattr(model, name))]
    for part, name, hint in (
        *((part, "atention_mask", r"\. Did you mean `attention_mask`\?") for part in parts if kind != "of_vectors"),
        *((part, "position_ids", "") for part in parts),
        *((part, "xyzzy", r"\.$") for part in parts),
    ):
        given = {key: value for key, value in inputs.items() if part is model or key != "token_type_ids"}
        with pytest.raises(TypeError, match=rf"{type(part).__name__} got an unexpected argument `{name}`" + hint):
            part(**given, **{name: 1})
    if kind in GENERATING:
        with pytest.raises(ValueError, match="not used by the model"):
            model.generate(**inputs, xyzzy=1)


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("of_vectors", "of_pairs")])
def test_types_of_one_text_are_taken_and_those_of_two_refused(kind):
    model, inputs = make(kind), read(kind)
    types = torch.zeros_like(inputs["input_ids"])
    assert same(model(**inputs, **labels(kind), token_type_ids=types), model(**inputs, **labels(kind)))
    calls = [model]
    if kind in GENERATING:
        calls.append(lambda **given: model.generate(**given, max_new_tokens=4))
        assert torch.equal(calls[1](**inputs, token_type_ids=types), calls[1](**inputs))
    types[1, 1] = 1
    for call in calls:
        with pytest.raises(ValueError, match=r"`token_type_ids` mark a second text, and this \w+ reads one"):
            call(**inputs, token_type_ids=types)


@pytest.mark.parametrize("side", ["left", "right"])
def test_vectors_for_the_decoder_in_place_of_ids(generating, side):
    model, inputs = make(generating, torch.float64), read(generating)
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    targets = pad([[7, 5, 3], [6, 9, 21, 4, 3], [8, 3]], side, fill=IGNORE)
    ids = model.prepare_decoder_input_ids_from_labels(targets)
    table = model.encoder.embeddings if model.decoder_embeddings is None else model.decoder_embeddings
    vectors = table.embed_words(ids)
    inputs["attention_mask"] = inputs.get("attention_mask", (targets != IGNORE).long())
    expected = model(**inputs, decoder_input_ids=ids, labels=targets)
    output = model(**inputs, decoder_inputs_embeds=vectors, labels=targets)
    close(output.logits[targets != IGNORE], expected.logits[targets != IGNORE])
    close(output.loss, expected.loss)
    close(model(**inputs, decoder_inputs_embeds=vectors).logits, model(**inputs, decoder_input_ids=ids).logits)
    with pytest.raises(ValueError, match="one of `decoder_input_ids` and `decoder_inputs_embeds`"):
        model(**inputs, decoder_input_ids=ids, decoder_inputs_embeds=vectors)


def test_words_at_once_take_no_vectors_for_the_decoder():
    model, inputs = make("words"), read("words")
    with pytest.raises(ValueError, match="takes no `decoder_input_ids` or `decoder_inputs_embeds`"):
        model(**inputs, decoder_inputs_embeds=torch.randn(3, 1, 12))


# Caches


def test_a_decoding_loop_by_hand(generating):
    """A cache comes back without one being handed in, with `use_cache` and by default, and is gone on with."""
    model, inputs = make(generating, torch.float64), read(generating)
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    encoded = {"encoder_outputs": model.encoder(**inputs)}
    if not model.config.has_latents:
        encoded["attention_mask"] = inputs["attention_mask"]
    words = torch.tensor([[2, 7, 9, 21], [2, 5, 5, 8], [2, 13, 4, 30]])
    whole = model(**encoded, decoder_input_ids=words, use_cache=False)
    assert whole.past_key_values is None
    for asked in ({"use_cache": True}, {}):
        cache, logits = None, []
        for t in range(words.shape[1]):
            output = model(**encoded, decoder_input_ids=words[:, t : t + 1], past_key_values=cache, **asked)
            cache = output.past_key_values
            assert cache.get_seq_length() == t + 1
            logits.append(output.logits)
        close(torch.cat(logits, dim=1), whole.logits)
    assert model(**encoded, labels=words).past_key_values is None
    model.config.use_cache = False
    assert model(**encoded, decoder_input_ids=words).past_key_values is None


def test_generation_goes_on_from_a_cache(generating):
    model, inputs = make(generating, torch.float64), read(generating)
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.no_grad():
        if model.lm_head.bias is not None:
            model.lm_head.bias[3] = -1e4
    settings = {"min_new_tokens": 7, "max_new_tokens": 7}
    whole = model.generate(**inputs, **settings)
    first = model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, return_dict_in_generate=True)
    assert first.past_key_values.get_seq_length() == 3
    rest = model.generate(
        **inputs, decoder_input_ids=first.sequences, past_key_values=first.past_key_values, max_new_tokens=4,
        min_new_tokens=4,
    )  # fmt: skip
    assert torch.equal(rest, whole)


# Generation


def test_who_can_generate(kind):
    """A class with a decoder may; a model says what its own decoder does."""
    model = make(kind)
    assert type(model).can_generate() is (kind in (*GENERATING, "words"))
    assert model.can_generate() is (kind in GENERATING)
    assert hasattr(model, "generation_config") is model.can_generate()
    assert not make("attention", decoder_type="none").can_generate()


class Repeating(LogitsProcessor):
    """A word that is always likelier than the end."""

    steps = 0

    def __call__(self, input_ids, scores):
        self.steps += 1
        scores = torch.full_like(scores, -30.0)
        scores[:, [5, 3]] = torch.tensor([0.6, 0.4]).log()
        return scores


@pytest.mark.parametrize(("told", "steps"), [({}, 3), ({"early_stopping": False}, 40)])
def test_a_beam_that_repeats_a_word_does_not_hold_up_a_batch(told, steps):
    model, likely = make("attention"), Repeating()
    assert model.generation_config.eos_token_id == 3
    model.generate(
        **read("attention"), num_beams=3, max_new_tokens=40, logits_processor=LogitsProcessorList([likely]), **told
    )
    assert likely.steps == steps


@pytest.mark.parametrize(
    "strategy", [{"do_sample": True}, {"num_beams": 2}, {"num_beams": 2, "do_sample": True, "use_cache": False}],
    ids=["sample", "beams", "beam_sample"],
)  # fmt: skip
def test_what_generation_records(generating, strategy):
    model, inputs = make(generating), read(generating)
    model.set_attn_implementation("eager")
    recorded = {
        "return_dict_in_generate": True, "output_scores": True, "output_logits": True, "output_hidden_states": True,
        "output_attentions": True,
    }  # fmt: skip
    torch.manual_seed(1)
    plain = model.generate(**inputs, **strategy, max_new_tokens=4)
    torch.manual_seed(1)
    output = model.generate(**inputs, **strategy, **recorded, max_new_tokens=4)
    assert torch.equal(output.sequences, plain)
    rows = len(plain) * strategy.get("num_beams", 1)
    steps = len(output.scores)
    assert steps >= plain.shape[1] - 1
    assert all(scores.shape == (rows, model.config.vocab_size) for scores in (*output.scores, *output.logits))
    assert len(output.decoder_hidden_states) == steps
    if generating != "of_vectors":
        encoded = model.encoder(**inputs, output_hidden_states=True, output_attentions=True)
        assert same(output.encoder_hidden_states, encoded.hidden_states)
        assert same(output.encoder_attentions, encoded.attentions)
    if strategy.get("use_cache", True):
        assert output.past_key_values.get_seq_length() >= plain.shape[1] - 1


def test_an_assistant_changes_nothing(generating):
    """Whatever it proposes, and however many words at once: the text is what greedy search gives, to its own bound."""
    model = make(generating, torch.float64)
    if generating == "of_vectors":
        vector = torch.randn(1, 24).double()
        with pytest.raises(ValueError, match="`assistant_model` encodes the text itself: give `input_ids`"):
            model.generate(sentence_embedding=vector, assistant_model=copy.deepcopy(model))
        return
    ids = torch.tensor([[7, 5, 9, 21, 4, 3, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    other = make(generating, torch.float64)
    with torch.no_grad():
        other.lm_head.bias.normal_() if other.lm_head.bias is not None else None
    for bound in ({}, {"max_new_tokens": 5}):
        expected = model.generate(**inputs, **bound)
        for helper in (
            {"assistant_model": copy.deepcopy(model)}, {"assistant_model": other}, {"prompt_lookup_num_tokens": 3},
        ):  # fmt: skip
            assert torch.equal(model.generate(**inputs, **bound, **helper), expected), helper.keys()
    vectors = model.encoder.embeddings.embed_words(ids)
    with pytest.raises(ValueError, match="give `input_ids`"):
        model.generate(inputs_embeds=vectors, assistant_model=other)


def test_settings_that_look_at_the_text():
    """Words and pairs of the input are forbidden or made unlikely; no word that cannot be generated gets in the way."""
    model = make("attention", input_vocab_size=50)
    ids = torch.tensor([[7, 5, 9, 21, 4, 3], [6, 45, 49, 8, 3, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    plain = model.generate(**inputs, max_new_tokens=6)
    with torch.no_grad():
        for word in (7, 5, 9, 21, 4, 6, 8):
            model.lm_head.bias[word] = 50.0
    assert set(model.generate(**inputs, max_new_tokens=6)[0, 1:].tolist()) <= {7, 5, 9, 21, 4, 6, 8}
    said = model.generate(**inputs, max_new_tokens=6, encoder_no_repeat_ngram_size=1)
    for row, text in zip(said.tolist(), ids.tolist(), strict=True):
        assert not set(row[1:]) & (set(text) - {0})
    assert said.shape == plain.shape
    rare = model.generate(**inputs, max_new_tokens=6, encoder_repetition_penalty=0.01)
    assert not set(rare[0, 1:].tolist()) & set(ids[0].tolist())
    two = make("two_vocabularies")
    with pytest.raises(ValueError, match=r"`encoder_no_repeat_ngram_size` compares .* has two vocabularies"):
        two.generate(**inputs, encoder_no_repeat_ngram_size=2)


def test_generation_from_vectors_of_the_words():
    for kind in ("attention", "lstm_attention", "no_rows"):
        model, inputs = make(kind), read(kind)
        vectors = model.encoder.embeddings.embed_words(inputs["input_ids"])
        mask = {"attention_mask": inputs["attention_mask"]}
        for cache in ({}, {"cache_implementation": "static"}, {"num_beams": 2}):
            expected = model.generate(**inputs, **cache, max_new_tokens=5)
            assert torch.equal(model.generate(inputs_embeds=vectors, **mask, **cache, max_new_tokens=5), expected)


def test_nothing_is_generated_of_no_rows(generating):
    model = make(generating)
    nothing = {name: value[:0] for name, value in read(generating).items()}
    sources = [nothing]
    if model.config.has_latents:
        size = 24 if generating == "of_vectors" else model.config.sentence_embedding_size
        sources.append({"sentence_embedding": torch.zeros(0, size)})
    for source in sources:
        for settings in ({}, {"num_beams": 2}, {"max_new_tokens": 3}):
            assert model.generate(**source, **settings).shape == (0, 1)
        assert model.generate(**source, return_dict_in_generate=True).sequences.shape == (0, 1)
    begun = torch.zeros((0, 3), dtype=torch.long)
    assert model.generate(**nothing, decoder_input_ids=begun).shape[0] == 0
    if model.config.has_latents:
        with pytest.raises(ValueError, match="cannot be decoded"):
            model.generate(sentence_embedding=torch.zeros(0, size + 1))


@pytest.mark.parametrize("kind", ["attention", "of_vectors", "words"])
def test_arrays_of_any_layout_are_decoded(kind):
    """Rows that run backwards, columns that lie apart, bytes in the other order, and one that may not be written."""
    model = make(kind)
    size = 24 if kind == "of_vectors" else model.config.sentence_embedding_size
    array = torch.randn(3, 2 * size).numpy()[:, ::2]
    say = model.predict_words if kind == "words" else lambda **source: (model.generate(**source, max_new_tokens=4),)
    expected = say(sentence_embedding=torch.tensor(array.copy()))[0]
    closed = array.copy()
    closed.flags.writeable = False
    for other in (array, array[::-1].copy()[::-1], array.astype(">f4"), array.astype(">f8"), closed):
        assert torch.equal(say(sentence_embedding=other)[0], expected)
    with pytest.raises(ValueError, match="of type int16 are quantised"):
        say(sentence_embedding=array.astype(">i2"))


@pytest.mark.parametrize("kind", ["attention", "lstm_attention", "no_rows"])
def test_seq2seq_trainer_with_generation(kind, tmp_path):
    """It evaluates by what it generates, whose length is each text's own, and keeps the best."""
    model = make(kind)
    inputs, targets = read(kind), labels(kind)["labels"]
    rows = [{**{name: value[row] for name, value in inputs.items()}, "labels": targets[row]} for row in (0, 1, 2, 2, 1)]
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, per_device_eval_batch_size=2, max_steps=4, eval_steps=2,
        save_steps=2, eval_strategy="steps", predict_with_generate=True, generation_num_beams=2,
        load_best_model_at_end=True, use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-3,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model, arguments, train_dataset=rows, eval_dataset=rows,
        compute_metrics=lambda said: {"rows": len(said.predictions), "starts": (said.predictions[:, 0] == 2).mean()},
    )  # fmt: skip
    before = trainer.evaluate()
    trainer.train()
    after = trainer.predict(rows)
    assert after.metrics["test_loss"] < before["eval_loss"]
    assert (after.metrics["test_rows"], after.metrics["test_starts"]) == (5, 1.0)
    said = model.generate(**inputs, num_beams=2)
    assert (after.predictions[:3, : said.shape[1]] == said.numpy()).all()


# Tools of torch


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["attention", "lstm_attention", "gru", "conditional_gru", "no_rows", "of_vectors"])
def test_int8_dynamic_quantisation(kind):
    """Of the whole model with everything that torch quantises: close, the same with padding, and it decodes vectors."""
    quantization = pytest.importorskip("torch.ao.quantization")
    model, inputs = make(kind), read(kind)
    small = quantization.quantize_dynamic(model, dtype=torch.qint8)
    assert type(small.lm_head) is not torch.nn.Linear
    output, expected = small(**inputs, **labels(kind)), model(**inputs, **labels(kind))
    assert output.loss.item() == pytest.approx(expected.loss.item(), rel=0.1)
    assert not torch.equal(output.logits, expected.logits)
    if kind != "of_vectors":
        encoded, exact = small.encoder(**inputs), model.encoder(**inputs)
        key = "latents" if model.config.has_latents else "last_hidden_state"
        for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
            alone = small.encoder(input_ids=inputs["input_ids"][row : row + 1, :length])[key][0].flatten()
            for given in (encoded, exact):
                other = given[key][row] if key == "latents" else given[key][row, :length]
                assert torch.cosine_similarity(alone, other.flatten(), dim=0) > 0.98
    said = small.generate(**inputs, max_new_tokens=4)
    assert said.shape[0] == 3
    if model.config.has_latents and kind != "of_vectors":
        vectors = small.encoder(**inputs).pooler_output
        assert torch.equal(small.generate(sentence_embedding=vectors, max_new_tokens=4), said)


@pytest.mark.parametrize("kind", ["attention", "encoder", "cnn_encoder"])
def test_exported_with_a_free_length(kind):
    """torch.export, of any number of texts of 2 words or more: also longer ones than learned positions."""
    settings = {"max_position_embeddings": 20} if kind == "encoder" else {}
    model, inputs = make(kind, **settings), read(kind)
    dims = {0: torch.export.Dim("texts"), 1: torch.export.Dim("words", min=2)}
    program = torch.export.export(model, (), inputs, dynamic_shapes=dict.fromkeys(inputs, dims)).module()
    for rows, length in ((1, 2), (4, 3), (2, 300)):
        ids = torch.randint(4, 40, (rows, length))
        mask = torch.ones_like(ids)
        mask[0, max(1, length // 2) :] = 0
        given, expected = (call(input_ids=ids, attention_mask=mask) for call in (program, model))
        key = "logits" if "logits" in expected else "pooler_output"
        close(given[key], expected[key], atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in GENERATING if kind != "of_vectors"])
def test_ids_of_32_bits_are_generated_from(kind):
    model, inputs = make(kind), read(kind)
    ids = inputs.pop("input_ids")
    for beams in (1, 2):
        wide, narrow = (model.generate(input_ids=given, **inputs, num_beams=beams) for given in (ids, ids.int()))
        assert torch.equal(wide, narrow)


@pytest.mark.parametrize("kind", ["attention", "encoder", "classifier", "of_vectors"])
def test_an_argument_that_is_none_asks_for_nothing(kind):
    """Models of transformers that wrap an encoder pass `position_ids`."""
    model, inputs = make(kind), {**read(kind), **labels(kind)}
    assert same(model(**inputs, position_ids=None), model(**inputs))


@pytest.mark.parametrize("kind", ["attention", "of_vectors"])
def test_beams_where_the_default_type_is_a_half(kind):
    model, inputs = make(kind), read(kind)
    expected = model.generate(**inputs, num_beams=2, max_new_tokens=5)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(model.generate(**inputs, num_beams=2, max_new_tokens=5), expected)
    finally:
        torch.set_default_dtype(before)
