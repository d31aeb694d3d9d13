"""Settings from recipes and from the command line: right types, helpful refusals."""

from __future__ import annotations

import json
import re

import pytest

from hf_meanmax import GatedMeanMaxAAEConfig, MeanMaxAAEConfig, RNNCNNConfig
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.training.finetune_settings import FinetuneArguments
from hf_meanmax.training.model_settings import model_fields
from hf_meanmax.training.recipes import (
    DEFAULT_RECIPE,
    arguments_from_settings,
    list_recipes,
    parse_command_line,
    read_recipe,
)
from hf_meanmax.training.settings import PretrainArguments
from tiny_model import make_model, make_tokenizer


@pytest.mark.parametrize("name", list_recipes())
def test_packaged_recipes_are_whole(name):
    pairs = ["--target", "y"] if read_recipe(name).get("objective") == "translation" else []
    if name == DEFAULT_RECIPE:
        assert parse_command_line([name]).corpus == ["docstrings"]
    else:
        with pytest.raises(ValueError, match=f"The recipe '{name}' names no texts. Give `--corpus"):
            parse_command_line([name, *pairs])
        pairs += ["--corpus", "x"]
    args = parse_command_line([name, *pairs])
    assert args.recipe == name
    config = args.build_config()
    assert {key: getattr(config, key) for key in args.model} == args.model
    known = {**vars(args), **args.model}
    # YAML reads 1e-4 (without a point) as text: every value must have arrived as its own type.
    assert {key: known[key] for key in read_recipe(name) if key != "corpus"} == {
        key: value for key, value in read_recipe(name).items() if key != "corpus"
    }
    assert json.loads(json.dumps(args.to_dict())) == args.to_dict()


def test_a_tokenizer_that_is_there_has_its_words(tmp_path):
    words = ["--corpus", "x", "--tokenizer", str(tmp_path)]
    # One that is not there is refused as such, later.
    parse_command_line([*words, "--vocab_size=99"])
    (tmp_path / "tokenizer.json").write_text("{}")
    parse_command_line([*words, "--lowercase=none", "--min_frequency=1"])
    for name, value in (("lowercase", "false"), ("vocab_size", "99"), ("min_frequency", "3")):
        with pytest.raises(ValueError, match=f"`{name}` is .*, which is for a new tokenizer; `tokenizer` '"):
            parse_command_line([*words, f"--{name}={value}"])
    # These choose the target's words, and those of the teacher's vectors.
    translation = ["translation-small", *words, "--target", "y", "--target_tokenizer", "bpe"]
    parse_command_line([*translation, "--vocab_size=999"])
    with pytest.raises(ValueError, match="`source_vocab_size` is 99, which is for a new tokenizer; `tokenizer` '"):
        parse_command_line([*translation, "--source_vocab_size=99"])
    parse_command_line(["student-small", *words, "--min_frequency", "3"])
    # A recipe gives way.
    assert parse_command_line(["mean-max-aae-small", *words]).tokenizer == str(tmp_path)
    # Words and pieces are all those of the file, in its case or not.
    words = ["--corpus", "x", "--tokenizer", "wordpiece", "--word_vectors", "words.safetensors"]
    parse_command_line([*words, "--lowercase", "false"])
    with pytest.raises(ValueError, match="`vocab_size` is 99, which is for a new tokenizer; `tokenizer` 'wordpiece'"):
        parse_command_line([*words, "--vocab_size", "99"])


def test_recipes_of_the_paper_have_its_sizes():
    config = parse_command_line(["mean-max-aae", "--corpus", "x"]).build_config()
    paper = MeanMaxAAEConfig(freeze_word_embeddings=True)
    assert config.to_dict() == paper.to_dict()
    small = parse_command_line(["rnn-cnn-small", "--corpus", "x"]).build_config()
    assert small.to_dict() == RNNCNNConfig().to_dict()
    assert (small.sentence_embedding_size, small.decoder_channels) == (1200, [600, 1200, 300])
    large = parse_command_line(["rnn-cnn-large", "--corpus", "x"]).build_config()
    assert large.to_dict() == RNNCNNConfig(hidden_size=2400).to_dict()
    assert large.sentence_embedding_size == 4800
    skip_thought = parse_command_line(["skip-thought", "--corpus", "x"]).build_config()
    assert (skip_thought.sentence_embedding_size, skip_thought.embedding_size) == (2400, 620)


@pytest.mark.parametrize(
    ("family", "config_class"), [("mean_max_aae", MeanMaxAAEConfig), ("gated_mean_max_aae", GatedMeanMaxAAEConfig)]
)
def test_families(family, config_class):
    """Each has its own defaults, and the other's parts."""
    config = parse_command_line(["--corpus", "x", "--family", family]).build_config()
    assert type(config) is config_class
    assert config.to_dict() == config_class().to_dict()
    recurrent = {"encoder_type": "bilstm", "pooling": "mean_max_last", "decoder_type": "lstm_gates"}
    words = [f"--{key}={value}" for key, value in recurrent.items()]
    args = parse_command_line(["--corpus", "x", "--family", family, *words])
    assert args.model == recurrent
    assert args.build_config().to_dict() == config_class(**recurrent).to_dict()


def test_no_argument_is_the_built_in_recipe():
    args = parse_command_line([])
    assert (args.recipe, args.corpus, args.output_dir) == ("docstrings", ["docstrings"], "runs/docstrings")
    args = parse_command_line(["--corpus", "my.txt"])
    assert (args.recipe, args.corpus, args.output_dir) == ("", ["my.txt"], "runs/pretrain")


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--seed", "3"], "seed", 3),
        (["--seed=3"], "seed", 3),
        (["--max_steps", "2e4"], "max_steps", 20000),
        (["--max-steps", "7"], "max_steps", 7),
        (["--learning_rate", "1e-3"], "learning_rate", 1e-3),
        (["--epochs", "2"], "epochs", 2.0),
        (["--corpus", "a.txt", "b.txt"], "corpus", ["a.txt", "b.txt"]),
        (["--corpus=a.txt"], "corpus", ["a.txt"]),
        (["--validation", "a.txt"], "validation", ["a.txt"]),
        (["--validation", "none"], "validation", None),
        (["--compile"], "compile", True),
        (["--compile", "--seed", "1"], "compile", True),
        (["--compile", "false"], "compile", False),
        (["--compile=0"], "compile", False),
        (["--lowercase", "yes"], "lowercase", True),
        (["--lowercase", "None"], "lowercase", None),
        (["--softmax", "sampled"], "softmax", "sampled"),
        (["--output_dir=runs/a=b"], "output_dir", "runs/a=b"),
        (["--seed", "1", "--seed", "2"], "seed", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_options_of_the_run(words, name, value):
    found = getattr(parse_command_line(words), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--hidden_size", "64"], "hidden_size", 64),
        (["--attention_dropout", "0.1"], "attention_dropout", 0.1),
        (["--freeze_word_embeddings"], "freeze_word_embeddings", True),
        (["--projection_activation", "relu"], "projection_activation", "relu"),
        (["--projection_activation", "null"], "projection_activation", None),
        (["--pooling", "max"], "pooling", "max"),
        (["--encoder_type", "cnn"], "encoder_type", "cnn"),
        (["--decoder_channels", "60", "6e1"], "decoder_channels", [60, 60]),
        (["--decoder_channels=60"], "decoder_channels", [60]),
        (["--decoder_channels", "none"], "decoder_channels", None),
        (["--decoder_type", "lstm_attention"], "decoder_type", "lstm_attention"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_options_of_the_model(words, name, value):
    args = parse_command_line(["--corpus", "x", *words])
    assert args.model == {name: value}
    assert getattr(args.build_config(), name) == value


def test_options_win_over_the_recipe(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("hidden_size: 32\nseed: 5\nlearning_rate: 2e-4\ncorpus:\n- a.txt\n- b.txt\nlowercase:\n")
    args = parse_command_line([str(recipe), "--seed", "6"])
    assert (args.seed, args.learning_rate, args.corpus) == (6, 2e-4, ["a.txt", "b.txt"])
    assert (args.model, args.recipe, args.output_dir) == ({"hidden_size": 32}, "mine", "runs/mine")
    recipe.write_text("family: rnn_cnn\nobjective: next_words\ndecoder_channels: [60, 70, 300]\n")
    assert parse_command_line([str(recipe)]).model == {"decoder_channels": [60, 70, 300]}
    wider = parse_command_line([str(recipe), "--decoder_channels", "90", "300"])
    assert wider.build_config().decoder_channels == [90, 300]
    assert args.lowercase is None


VECTORS_ALONE = ["--teacher", "x", "--objective", "none"]
COSINES = [*VECTORS_ALONE, "--teacher_weight", "0", "--similarity_weight", "1"]
STATIC = ["--encoder_type", "none", "--pooling", "weighted_mean", "--objective", "none", "--teacher", "x"]


@pytest.mark.parametrize(
    ("name", "value", "others", "needed"),
    [
        ("teacher_loss", "squared", [], "a `teacher`"),
        ("contrastive_weight", "2", [], "`contrastive`"),
        ("temperature", "0.1", ["--teacher", "x"], "`contrastive` or `teacher_loss` 'contrast'"),
        ("temperature", "0.1", [*COSINES, "--teacher_loss", "cosine"], "`contrastive` or `teacher_loss` 'contrast'"),
        ("teacher_loss", "contrast", COSINES, "a `teacher_weight`"),
        ("decoding_weight", "2", VECTORS_ALONE, "a decoder"),
        ("softmax", "sampled", VECTORS_ALONE, "a decoder"),
        ("label_smoothing", "0.1", VECTORS_ALONE, "a decoder"),
        ("sample_sentences", "7", ["--eval_steps", "0"], "`eval_steps`"),
        ("output_from_words", "true", ["--tie_word_embeddings", "false"], "`word_vectors` and an untied output layer"),
        (
            "output_from_words",
            "true",
            ["--word_vectors", "y.safetensors", "--tie_word_embeddings", "true"],
            "`word_vectors` and an untied output layer",
        ),
        ("word_weight_rate", "3", [], "`pooling` 'weighted_mean' or `weighted_mean_row`"),
        ("word_vector_rate", "3", ["--freeze_word_embeddings", "true"], "`freeze_word_embeddings` false"),
        ("num_context_words", "5", [], "`objective` 'next_words'"),
        ("max_target_tokens", "9", [], "`objective` 'translation'"),
        ("num_negatives", "9", [], "`softmax` 'sampled'"),
        ("muon_rate", "3", [], "`optimizer` 'muon'"),
        ("muon_interval", "4", [], "`optimizer` 'muon'"),
        ("num_hidden_layers", "3", STATIC, "an encoder or a decoder"),
        ("word_vector_scale", "2", [], "`word_vectors`"),
        ("min_frequency", "9", ["--tokenizer", "unigram"], "a `tokenizer` of another kind than 'unigram'"),
        ("word_vector_epochs", "9", ["--word_vectors", "y.safetensors"], "`word_vectors` 'train'"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(name, value, others, needed):
    words = ["--corpus", "x.txt", f"--{name}", value, *others]
    with pytest.raises(ValueError, match=rf"`{name}` is .*, which has no effect without {re.escape(needed)}\. Leave"):
        parse_command_line(words)
    # A recipe may have settings of another one, and a default asks for nothing.
    default = PretrainArguments().defaults()
    words[3] = str({**default["model"], **default}[name])
    parse_command_line(words)


def test_a_decoder_reads_its_layers():
    for words in (["embedding-decoder", "--corpus", "x"], ["docstrings", *STATIC[:4]]):
        assert parse_command_line([*words, "--num_hidden_layers", "3"]).model["num_hidden_layers"] == 3


def test_a_split_of_no_data_set_is_refused():
    for name in ("validation", "test"):
        with pytest.raises(ValueError, match=f"`{name}_split` is 'dev', which has no effect without `{name}`"):
            parse_command_line(["--train", "x.tsv", f"--{name}_split", "dev"], FinetuneArguments)
        parse_command_line(["--train", "x.tsv", f"--{name}_split", "dev", f"--{name}", "glue"], FinetuneArguments)


def test_an_option_of_another_classifier_is_refused(tmp_path):
    for words in (["--classifier_row_size", "3"], ["--classifier_type", "pruned", "--classifier_hidden_size", "3"]):
        with pytest.raises(ValueError, match=f"`{words[-2][2:]}` is 3, which has no effect without `classifier_type`"):
            parse_command_line(["--train", "x.tsv", *words], FinetuneArguments)
    words = ["--train", "x.tsv", "--classifier_row_size", "3", "--pair_size", "8"]
    assert parse_command_line(
        [*words, "--classifier_type", "pruned", "--pair_combination", "multiplicative"], FinetuneArguments
    )
    # Those of a classifier that the run starts from.
    saved = {"classifier_type": "pruned", "pair_combination": "multiplicative"}
    folder = save_checkpoint(make_model(**saved), make_tokenizer(), tmp_path / "model")
    assert parse_command_line([*words, "--checkpoint", str(folder)], FinetuneArguments)
    with pytest.raises(ValueError, match="`classifier_row_size` is 3, which has no effect"):
        parse_command_line([*words, "--checkpoint", str(folder), "--classifier_type", "mlp"], FinetuneArguments)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bach_tokens", "3"], r"unknown option --bach_tokens. Did you mean --batch_tokens\?"),
        (["--hiden_size", "3"], r"unknown option --hiden_size. Did you mean --hidden_size\?"),
        (["--batch-size", "3"], r"unknown option --batch-size. Here it is --batch_tokens\."),
        (["--model_name_or_path", "m"], r"Here it is --initial_model\."),
        (["--zzz", "3"], "unknown option --zzz. See hf-meanmax pretrain --help"),
        (["--recipe", "x"], "unknown option --recipe"),
        (["--auto_classes", "x"], "unknown option --auto_classes"),
        (["--vocab_size", "many"], "--vocab_size/--vocab-size: invalid int value: 'many'"),
        (["--seed", "1.5"], r"--seed: invalid int value: '1\.5'"),
        (["--seed", "inf"], "--seed: invalid int value: 'inf'"),
        (["--seed", "nan"], "--seed: invalid int value: 'nan'"),
        (["--seed"], "--seed: expected one argument"),
        (["--seed", "1", "2"], r"'2' is not expected: .* Texts are given with --corpus\."),
        (["--learning_rate", "fast"], "--learning_rate/--learning-rate: invalid float value: 'fast'"),
        (["--compile", "maybe"], "--compile: .* got maybe but expected one of yes/no, true/false"),
        (["--validation"], "--validation: expected at least one argument"),
        (["--corpus", "y"], "`--corpus` is given twice. Give all values after one option: --corpus first second"),
        (["--epochs", "inf"], "`epochs` is inf; it must be a finite number"),
        (["--learning_rate", "nan"], "`learning_rate` is nan; it must be a finite number"),
        (["--seed", "99999999999999999999"], "is not 9223372036854775807 or less"),
        (["--adam_beta1", "1.5"], r"`adam_beta1` is 1\.5; it must be at least 0 and less than 1"),
        (["--max_unknown_rate", "7"], r"`max_unknown_rate` is 7\.0; it may be 1 at most"),
        (
            ["--early_stopping_patience", "1", "--eval_steps", "0"],
            "`early_stopping_patience` is 1, but with `eval_steps` 0 nothing is evaluated before the end",
        ),
        (["--teacher_shuffled"], "`teacher_shuffled` is True without a `teacher`"),
        (
            ["--family", "compound_attention", "--objective", "translation", "--target", "y", "--drop_unknown_words"],
            "`drop_unknown_words` is not for the objective 'translation'",
        ),
        (["--softmax", "half"], r"--softmax: invalid choice: 'half' \(choose from .*full.*chunked.*sampled"),
        (
            ["--pooling", "median"],
            r"--pooling: invalid choice: 'median' \(choose from .*mean_max.*mean.*max.*last",
        ),
        (
            ["--encoder_type", "rnn"],
            r"--encoder-type: invalid choice: 'rnn' \(choose from .*self_attention.*bilstm.*lstm.*bigru",
        ),
        (
            ["--decoder_type", "rnn"],
            r"--decoder-type: invalid choice: 'rnn' \(choose from .*attention.*gates.*lstm.*lstm_attention",
        ),
        (["--decoder_channels", "60", "wide"], "--decoder-channels: invalid int value: 'wide'"),
        (["--decoder_channels", "60", "6.5"], r"--decoder-channels: invalid int value: '6\.5'"),
        (["--decoder_channels"], "--decoder-channels: expected at least one argument"),
        (
            ["--family", "rnn_cnn", "--objective", "next_words", "--decoder_channels", "60"],
            r"`decoder_channels` is \[60\]; .* needs two widths or more",
        ),
        (
            ["--objective", "next"],
            r"--objective: invalid choice: 'next' \(choose from .*reconstruction.*next_words.*next_sentence",
        ),
        (
            ["--decoder_inputs", "none"],
            r"--decoder-inputs: invalid choice: 'none' \(choose from .*words.*own.*random",
        ),
        (
            ["--family", "rnn_cnn"],
            "`decoder_type` is 'words_cnn', which predicts a fixed number .*`objective` is 'next_words', not 'recons",
        ),
        (
            ["--family", "rnn_cnn", "--objective", "next_sentence"],
            "`decoder_type` is 'words_cnn'.* `objective` is 'next_words', not 'next_sentence'",
        ),
        (
            ["--objective", "neighbours"],
            "`objective` is 'neighbours' and `predict_previous` False: 'neighbours' needs `predict_previous=True`",
        ),
        (
            ["--objective", "next_words", "--predict_previous"],
            "`objective` is 'next_words' and `predict_previous` True: .* nothing else may have it",
        ),
        (
            ["--family", "rnn_cnn", "--objective", "next_words", "--decoder_inputs", "own"],
            "`decoder_inputs` is 'own', but `decoder_type` 'words_cnn' takes none",
        ),
        (
            ["--objective", "neighbours", "--predict_previous", "--decoder_inputs", "random"],
            "`decoder_inputs` is 'random', which is for one decoder; with `predict_previous` there are two",
        ),
        (
            ["--objective", "next_sentence", "--showcase"],
            "`showcase` prints reconstructions from vectors, and a model with `objective` 'next_sentence' and "
            "`pooling` 'mean_max' makes none",
        ),
        (
            ["--family", "compound_attention", "--architecture", "attn", "--showcase"],
            "`showcase` prints reconstructions from vectors, .* `pooling` 'none' makes none",
        ),
        (["--decoding_weight", "0"], "`decoding_weight` is 0: the decoder would .* Use `--objective none`"),
        (["--context_weight", "0.1"], "`context_weight` is 0.1 and `context_channels` None: the second decoder needs"),
        (["--context_channels", "60", "2048"], "`context_weight` is 0.0 and `context_channels` .* needs both"),
        (
            ["--context_weight", "0.1", "--context_channels", "60", "2048", "--objective", "next_sentence"],
            "`context_weight` is 0.1, which works with `objective` 'reconstruction', not 'next_sentence'",
        ),
        (
            ["--context_weight", "0.1", "--context_channels", "60", "2048", "--long_lines", "truncate"],
            "`long_lines` is 'truncate' .* every line is kept, as context",
        ),
        (["--decoder_type", "lstm_gates", "--pooling", "last"], "`pooling` is 'last', which leaves the gates"),
        (["--projection_activation", "gelu"], r"--projection-activation: invalid choice: 'gelu' \(choose from .*relu"),
        (
            ["--family", "bert"],
            "`family` is 'bert'; allowed: 'compound_attention', 'embedding_decoder', 'gated",
        ),
        (["docstrings", "two"], "'two' is not expected"),
        (["--validation", "docstrings"], "'docstrings', the built-in corpus, stands alone in `corpus`"),
        (["--batch_tokens", "0"], "`batch_tokens` is 0; it must be 1 or more"),
        (["--seed", "-1"], "`seed` is -1; it must be 0 or more"),
        (["--max_minutes", "-1"], r"`max_minutes` is -1\.0; it must be 0 or more"),
        (["--max_grad_norm", "-1"], r"`max_grad_norm` is -1\.0; it must be 0 or more"),
        (["--weight_decay", "nan"], "`weight_decay` is nan; it must be a finite number"),
        (["--min_tokens", "9", "--max_tokens", "8"], "`max_tokens` is 8, less than `min_tokens` 9"),
        (["--epochs", "0", "--max_steps", "0"], r"`epochs` is 0\.0; give a positive number, or `max_steps`"),
        (["--word_drop", "1"], r"`word_drop` is 1\.0; it must be at least 0 and less than 1"),
        (["--hidden_size", "30", "--num_attention_heads", "4"], "`num_attention_heads` is 4 and `hidden_size` 30"),
        (["--attention_dropout", "1.5"], r"`attention_dropout` is 1\.5; it must be at least 0 and less than 1"),
        (
            ["--freeze_encoder", "--contrastive", "views", "--word_drop", "0.2"],
            "`freeze_encoder` is True, so that `contrastive` 'views' would train nothing",
        ),
        (
            [
                *VECTORS_ALONE[2:],
                "--freeze_encoder",
                "--contrastive",
                "views",
                "--contrastive_size",
                "4",
                "--embedding_dropout",
                "0.5",
            ],
            "without noise or dropout two views of a sentence are the same. Give `word_drop`",
        ),
        (
            ["--freeze_encoder", "--teacher", "x", "--similarity_weight", "1"],
            r"`freeze_encoder` is True, so that `similarity_weight` 1\.0 would train nothing",
        ),
        (
            ["--freeze_encoder", "--teacher", "x", "--teacher_head", "false"],
            r"`freeze_encoder` is True, so that `teacher_weight` 1\.0 would train nothing",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_refused_options(words, message):
    with pytest.raises(ValueError, match=message):
        parse_command_line(["--corpus", "x", *words] if words[0].startswith("--") else words)


@pytest.mark.parametrize("name", ["corpus", "tokenizer", "word_vectors", "teacher"])
def test_what_is_read_does_not_lie_where_the_run_writes(tmp_path, name):
    """With `--overwrite` it would be removed first."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    words = [
        *([] if name == "corpus" else ["--corpus", "x"]),
        f"--{name}",
        str(tmp_path / "run" / "model"),
        "--overwrite",
    ]
    with pytest.raises(ValueError, match=f"`{name}` .* lies in `output_dir` .* would take its place. Give another"):
        parse_command_line([*words, "--output_dir", str(tmp_path / "run")])
    parse_command_line([*words, "--output_dir", str(tmp_path / "other")])


def test_what_is_not_given_lies_nowhere(tmp_path, monkeypatch):
    """An empty path would be the folder that the command is given in."""
    (tmp_path / "out" / "notes").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "out" / "notes")
    parse_command_line(["--corpus", str(tmp_path / "x.txt"), "--output_dir", str(tmp_path / "out")])


def test_recipes_that_are_not_there():
    with pytest.raises(
        FileNotFoundError,
        match=r"'mean-max-aee'.*Did you mean 'mean-max-aae'\?.*Packaged: contrastive-small, contrastive-static",
    ):
        read_recipe("mean-max-aee")
    with pytest.raises(FileNotFoundError, match=r"'zzz' and no packaged recipe of that name\. Packaged"):
        read_recipe("zzz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not valid YAML"),
        ("- a\n- b\n", "must hold `key: value` lines, not a list"),
        ("just words", "must hold `key: value` lines, not a str"),
        ("max_step: 3\n", r"unknown option --max_step. Did you mean --max_steps\?"),
        ("7: 3\n", "unknown option --7"),
        ("max_steps: yes\n", "--max_steps/--max-steps: invalid int value: 'True'"),
        ("corpus: {a: 1}\n", "`corpus` is {'a': 1}; it must be of type list"),
        ("corpus:\n", "`corpus` is None; it must be of type list"),
        ("family: [mean_max_aae]\n", r"`family` is \['mean_max_aae'\]; allowed"),
        ("hidden_size:\n  a: 1\n", "`hidden_size` is .*; it must be of type int"),
    ],
)
def test_recipe_files_that_are_refused(tmp_path, text, message):
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(text)
    with pytest.raises(ValueError, match=message):
        parse_command_line([str(recipe)])


def test_a_recipe_changes_its_base(tmp_path):
    base, mine = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("base: student-small\nhidden_size: 64\nseed: 5\n")
    mine.write_text(f"base: {base}\nseed: 6\ncorpus: [a.txt]\n")
    expected = {**read_recipe("student-small"), "hidden_size": 64, "seed": 6, "corpus": ["a.txt"]}
    assert read_recipe(str(mine)) == expected
    args = parse_command_line([str(mine), "--seed", "7"])
    assert (args.recipe, args.seed, args.model["hidden_size"], args.teacher) == ("mine", 7, 64, expected["teacher"])


def test_bases_that_are_refused(tmp_path):
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(f"base: {other}\n")
    other.write_text(f"base: {one}\n")
    with pytest.raises(ValueError, match=r"one.yaml' is its own base: .*one.yaml -> .*other.yaml -> .*one.yaml"):
        read_recipe(str(one))
    other.write_text("base: [student]\n")
    with pytest.raises(ValueError, match=r"other.yaml': `base` is \['student'\]; it must be one recipe's name"):
        read_recipe(str(one))
    other.write_text("base: studnet\n")
    with pytest.raises(FileNotFoundError, match=r"No recipe file 'studnet'.*Did you mean 'student'\?"):
        read_recipe(str(one))


def test_an_empty_recipe_file_is_all_defaults(tmp_path):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    args = parse_command_line([str(tmp_path / "empty.yaml")])
    assert args.to_dict() == {**PretrainArguments().to_dict(), "recipe": "empty", "output_dir": "runs/empty"}


@pytest.mark.parametrize("config_class", [MeanMaxAAEConfig, GatedMeanMaxAAEConfig])
def test_what_follows_from_the_tokenizer_cannot_be_set(config_class):
    fields = model_fields(config_class)
    assert {"hidden_size", "vocab_size", "tie_word_embeddings"} <= set(fields)
    for name in ("input_vocab_size", "eos_token_id", "is_encoder_decoder", "auto_classes", "architectures"):
        assert name not in fields
        with pytest.raises(ValueError, match=f"unknown option --{name}"):
            arguments_from_settings({name: 1})


def test_trackers_are_named_with_commas(monkeypatch):
    monkeypatch.setattr("hf_meanmax.training.run_settings.get_available_trackers", lambda: ["tensorboard", "wandb"])
    given = {"wandb,": "wandb", " tensorboard , wandb": "tensorboard,wandb", ",": ""}
    assert {names: PretrainArguments(report_to=names).report_to for names in given} == given


def test_made_directly():
    assert PretrainArguments(corpus="a.txt").corpus == ["a.txt"]
    with pytest.raises(ValueError, match="`softmax` is 'half'; allowed"):
        PretrainArguments(softmax="half")
    with pytest.raises(ValueError, match="`family` is 'bert'; allowed"):
        PretrainArguments(family="bert")


def test_none_takes_back_what_a_recipe_names():
    args = parse_command_line(["static-en", "--corpus", "x", "--word_vectors", "none"])
    assert args.word_vectors == ""
    args = arguments_from_settings({"corpus": "x", "teacher": "none"})
    assert (args.teacher, args.reads_vectors) == ("", False)


def test_none_is_a_value_where_the_setting_knows_it():
    settings = {"family": "compound_attention", "objective": "translation", "corpus": "a", "target": "b"}
    given = {"architecture": "none", "pooling": "last", "decoder_context": "none", "decoder_initial_state": "true"}
    args = arguments_from_settings({**settings, **given})
    assert (args.model["decoder_context"], args.model["pooling"]) == ("none", "last")
    assert args.model["architecture"] is None
