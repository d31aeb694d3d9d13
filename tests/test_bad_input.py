"""What bad input gets: each kind of it, the answer, and the tests that hold the answer to its word.

The table names the tests of the parts; the tests below are those of whole programs, from the command line on.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands import decode, encode, pretrain
from tiny_model import make_model, make_tokenizer

TESTS = Path(__file__).parent
HERE = "test_bad_input.py"
FAMILY = "modeling/family_tests.py::FamilyTests"

ANSWERS = {
    "empty or all-unknown sentence at encode: a finite embedding, never NaN or -inf": [
        f"{FAMILY}::test_empty_input_is_finite",
        f"{FAMILY}::test_row_without_tokens_leaves_the_others_alone",
        "checkpoint/test_folder.py::test_one_folder_loads_everywhere",
        f"{HERE}::test_empty_and_unknown_sentences_are_encoded",
    ],
    "a normalised, truncated or foreign vector given to decode: refused, with what was expected": [
        f"{FAMILY}::test_vectors_that_are_no_embeddings_are_refused",
        "inference/test_decode.py::test_vectors_that_cannot_be_decoded",
        f"{HERE}::test_normalised_vectors_are_not_decoded",
    ],
    "longer than a learned position table: zero codes beyond it, one warning with the count": [
        "modeling/test_parts.py::test_positions_beyond_a_learned_table",
        "modeling/test_parts.py::test_generation_beyond_a_learned_table",
    ],
    "empty corpus, no line left after filters: an error that counts what each filter dropped": [
        "data/test_token_store.py::test_empty_corpus",
        "data/test_token_store.py::test_nothing_left_counts_what_each_filter_dropped",
        "training/test_preparation.py::test_nothing_to_hold_out",
        f"{HERE}::test_nothing_to_train_on",
        f"{HERE}::test_filters_tell_what_they_dropped",
    ],
    "a file that is not UTF-8: an error with file and line; --encoding-errors replace to go on": [
        "data/test_corpus.py::test_bytes_that_are_not_utf8",
        "inference/test_encode.py::test_bad_vectors_and_bad_text",
        f"{HERE}::test_training_on_a_file_that_is_not_utf8",
    ],
    "a line longer than the limit: truncated, counted, reported once": [
        "data/test_token_store.py::test_truncated_lines_are_reported_once",
        "inference/test_encode.py::test_length_limit_is_counted",
        "inference/test_decode.py::test_texts_that_had_not_ended_are_counted",
        "evaluation/test_embedding.py::test_cut_texts_are_counted_and_told_once",
        "training/test_preparation.py::test_sentences_are_filtered",
    ],
    "unknown recipe key, misspelt option: refused, with the nearest known name": [
        f"{FAMILY}::test_unknown_setting_names_the_nearest",
        "training/test_settings.py::test_refused_options",
        "training/test_settings.py::test_recipe_files_that_are_refused",
        "training/test_settings.py::test_recipes_that_are_not_there",
        "training/test_pretrain.py::test_command_line",
        "inference/test_encode.py::test_misspelt_options",
        "inference/test_decode.py::test_command_line",
        "checkpoint/test_hub.py::test_command_line",
    ],
    "checkpoint of another family, damaged or half-written file: an error that names the file and what was expected": [
        "checkpoint/test_folder.py::test_missing_and_damaged_files_are_named",
        "checkpoint/test_folder.py::test_wrong_checkpoints_are_explained",
        "training/test_checkpoints.py::test_damaged_files_are_named",
        "training/test_checkpoints.py::test_checkpoint_of_another_model_is_refused",
        "training/test_checkpoints.py::test_what_a_killed_process_left_is_no_checkpoint",
        "data/test_token_store.py::test_damaged_store_is_refused_and_built_anew",
        "data/test_corpus.py::test_damaged_compressed_file_is_named",
        "tokenization/test_word_vectors.py::test_bad_files_are_explained",
    ],
    "NaN or infinite loss: stop with the step, the batch's ids and the last good checkpoint": [
        "training/test_pretrain.py::test_a_loss_that_is_no_number_stops_the_run",
        "training/test_pretrain.py::test_a_gradient_that_is_no_number_reaches_no_checkpoint",
        "training/test_checkpoints.py::test_weights_that_are_no_numbers_are_not_saved",
    ],
    "disk full or no write permission: an error before the old checkpoint is touched": [
        "checkpoint/test_folder.py::test_old_checkpoint_survives_a_failed_save",
        "checkpoint/test_folder.py::test_replacing_file_is_all_or_nothing",
        "training/test_checkpoints.py::test_an_error_while_writing_leaves_the_older_ones",
        "training/test_checkpoints.py::test_no_permission",
        "training/test_pretrain.py::test_disk_full_at_a_checkpoint",
        "data/test_token_store.py::test_interrupted_build_leaves_the_old_store",
        f"{HERE}::test_output_that_cannot_be_written",
    ],
    "Hub unreachable, no token, repository exists: a one-line error; nothing local is lost; retry works": [
        "checkpoint/test_hub.py::test_unreachable_hub",
        "checkpoint/test_hub.py::test_permissions",
        "checkpoint/test_hub.py::test_existing_repository",
        "checkpoint/test_hub.py::test_retry_after_an_error",
        "data/test_corpus.py::test_hub_out_of_reach",
    ],
}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: re.sub(r"\W+", "-", answer.split(":")[0]))
def test_every_answer_has_its_tests(answer):
    for node in ANSWERS[answer]:
        file, *names = node.split("::")
        scope = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
        for name in names:
            found = [item for item in scope if isinstance(item, ast.ClassDef | ast.FunctionDef) and item.name == name]
            assert found, f"no test {node}"
            scope = found[0].body


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("bad") / "model")


@pytest.fixture
def train(tmp_path, capsys):
    """Runs pretraining on the bytes of a corpus; returns the exit code and what it wrote to stderr."""

    def run(content: bytes, *words: str) -> tuple[int, str]:
        (tmp_path / "corpus.txt").write_bytes(content)
        command = ["--corpus", str(tmp_path / "corpus.txt"), "--output_dir", str(tmp_path / "run"), *words]
        try:
            code = pretrain.main([*command, "--cache_dir", str(tmp_path / "cache"), "--max_steps", "1"])
        except SystemExit as end:
            return 1, f"{capsys.readouterr().err}{end.code}"
        return code, capsys.readouterr().err

    return run


def error_line(errors: str) -> str:
    """The error, which is one line after whatever progress was shown."""
    return errors[errors.index("hf-meanmax pretrain: ") :].rstrip("\n")


def test_empty_and_unknown_sentences_are_encoded(checkpoint, tmp_path):
    texts = ["", "   ", "unheard words", "\u65e5\u672c", "the cat"]
    for batch in (texts, texts[:1], texts[2:3]):
        assert np.isfinite(SentenceTransformer(str(checkpoint), device="cpu").encode(batch)).all()
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    encode.main([str(checkpoint), str(tmp_path / "text.txt"), "--output", str(tmp_path / "out")])
    rows = np.load(tmp_path / "out" / "shard-000000.npy")
    assert rows.shape == (5, 32)
    assert np.isfinite(rows).all()


def test_normalised_vectors_are_not_decoded(checkpoint, tmp_path):
    (tmp_path / "text.txt").write_text("the cat\na dog\n")
    encode.main([str(checkpoint), str(tmp_path / "text.txt"), "--output", str(tmp_path / "out"), "--normalize"])
    with pytest.raises(SystemExit, match=r"^hf-meanmax decode: .*encoded with --normalize; only raw vectors"):
        decode.main([str(checkpoint), str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the corpus is empty"),
        (b"\n \n\n", "the corpus is empty"),
        (b"one two\n" * 300, "No sentence of the corpus is left after the filters (280 lines read; dropped: "),
    ],
    ids=["empty", "blank", "short"],
)
def test_nothing_to_train_on(train, content, message, tmp_path):
    code, errors = train(content)
    assert code == 1
    line = error_line(errors)
    assert "\n" not in line
    assert message in line
    assert not (tmp_path / "run" / "model").exists()


def test_filters_tell_what_they_dropped(train, tmp_path):
    (tmp_path / "held-out.txt").write_text("one two three four five\n")
    code, errors = train(
        b"one two\n" * 30 + b"a b c d e f g h\n" * 20,
        "--max_tokens",
        "6",
        "--validation",
        str(tmp_path / "held-out.txt"),
    )
    assert code == 1
    assert (
        "50 lines read; dropped: 0 without a token, 0 by max_unknown_rate, 30 by min_tokens, 20 by max_tokens" in errors
    )


def test_training_on_a_file_that_is_not_utf8(train, tmp_path):
    code, errors = train(b"one two three four five\n" * 200 + b"caf\xe9 two three four\n")
    assert code == 1
    line = error_line(errors)
    assert f"{tmp_path / 'corpus.txt'}, line 201" in line
    assert "--encoding_errors replace" in line
    assert "\n" not in line
    sizes = "--embedding_size 8 --hidden_size 8 --intermediate_size 8 --num_attention_heads 2".split()
    code, errors = train((tmp_path / "corpus.txt").read_bytes(), "--encoding-errors", "replace", *sizes)
    assert code == 0, errors[-2000:]


def test_output_that_cannot_be_written(train, tmp_path):
    (tmp_path / "run").write_text("mine")
    code, errors = train(b"one two three four five\n" * 200)
    assert code == 1
    assert "\n" not in error_line(errors)
    assert str(tmp_path / "run") in error_line(errors)
    assert (tmp_path / "run").read_text() == "mine"
