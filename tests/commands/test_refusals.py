"""What a verb refuses, in a line and before any work; and what it says aloud."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_meanmax import EmbeddingDecoderForGeneration
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.__main__ import main
from hf_meanmax.inference import encode as encode_module
from hf_meanmax.inference.search import SentenceIndex
from hf_meanmax.training import preparation, vocabulary
from tiny_model import make_model, make_tokenizer

SIZES = "--embedding_size 8 --hidden_size 16 --intermediate_size 16 --num_attention_heads 2 --max_steps 1"
TRAIN = f"pretrain --corpus {{}}/text.txt --output_dir {{}}/run --cache_dir {{}}/cache --min_tokens 1 {SIZES}"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    save_checkpoint(
        make_model(), make_tokenizer(), folder / "model", training_args={"objective": "reconstruction", "seed": 0}
    )
    save_checkpoint(make_model(), make_tokenizer(), folder / "other", training_args={"objective": "translation"})
    decoder = make_model(full_class=EmbeddingDecoderForGeneration, embedding_dim=8, embedder={"name": "my-embedder"})
    save_checkpoint(decoder, make_tokenizer(), folder / "decoder")
    shutil.copytree(folder / "model", folder / "large")
    config = json.loads((folder / "large" / "config.json").read_text())
    (folder / "large" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10_000_000}))
    (folder / "text.txt").write_text("the cat sat\na dog ran\nthe red dog\n" * 10)
    np.save(folder / "vectors.npy", np.ones((2, 8), dtype=np.float32))
    main(["search", "index", str(folder / "model"), str(folder / "text.txt"), "--output", str(folder / "index")])
    return folder


def run(words: str, folder: Path, capsys) -> tuple[object, str]:
    """Exit code or message, and what is on stderr, of a command whose {} is a folder."""
    try:
        code: object = main([word.replace("{}", str(folder)) for word in words.split()])
    except SystemExit as error:
        code = error.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        # Trackers, words, translators, splits
        (f"{TRAIN} --report_to nothing", "`report_to` is 'nothing'; allowed, with commas:"),
        (f"{TRAIN} --min_frequency 1000000", "All 60 words of the training texts are unknown"),
        ("translate {}/model {}/text.txt", "is no translator: it was trained with the objective 'reconstruction'"),
        ("translate {}/decoder {}/text.txt", "has no text encoder of its own"),
        ("encode {}/model {}/text.txt --output {}/v --split test", "is a file, which has no split 'test'"),
        ("prepare {}/text.txt --output {}/p.txt --config_name en", "is a file, which has no config_name 'en'"),
        (f"{TRAIN} --split test", "is a file, which has no split 'test'"),
        # Absurd sizes
        (f"{TRAIN} --num_hidden_layers 10000000", "`num_hidden_layers` is 10,000,000; it may be 1,000 at most"),
        (f"{TRAIN} --hidden_size 1e12", "`hidden_size` is 1,000,000,000,000; it may be"),
        (f"{TRAIN} --hidden_size 2e6", "A model of these sizes has weights of"),
        (f"{TRAIN} --num_negatives 1e9 --softmax sampled", "`num_negatives` is 1,000,000,000; it may be 1,000,000"),
        ("encode {}/large {}/text.txt --output {}/v", "`num_hidden_layers` is 10,000,000; it may be 1,000 at most"),
        ("decode {}/model {}/vectors.npy --num-beams 100000", "is 100,000; it may be 1,000 at most"),
        ("translate {}/model {}/text.txt --num-beams 100000", "is 100,000; it may be 1,000 at most"),
        ("reconstruct {}/model {}/text.txt --num_beams 100000", "is 100,000; it may be 1,000 at most"),
        ("encode {}/model {}/text.txt --output {}/v --batch_size 99999999999999999999", "is not 9223372036854775807"),
        ("evaluate {}/model --device foo", "device is 'foo', which cannot be used here"),
        ("pretrain --min_frequency 99999999999999999999 --corpus {}/text.txt", "is not 9223372036854775807 or less"),
        ("evaluate {}/model --latent_rows 5 --tasks STS16", "--latent_rows is for --erasure"),
        (
            "evaluate {}/model --erasure TREC --latent_rows 2 --truncate_dim 8 --tasks STS16",
            "--latent_rows are rows of whole vectors",
        ),
        ("push {}/model me/it --card_only card.md --private", "--private: for a push, not for --card_only"),
        ("evaluate {}/model {}/model --tasks STS16", "A model is named twice"),
        # The place of a recipe, and of a file
        ("pretrain --max_steps 2 docstrings", "The recipe 'docstrings' comes first"),
        ("pretrain --corpus {}/text.txt static-en", "The recipe 'static-en' comes first"),
        ("pretrain --objective embedding_inversion", "needs an `embedder`"),
        (
            "encode {}/text.txt {}/model --output {}/v",
            "no model. The model comes first, then the texts",
        ),
        ("search query {}/index --file nope", "No such file: 'nope'"),
        ("translate {}/model {}/text.txt --reference nope", "No such file: 'nope'"),
        ("decode {}/decoder {}/vectors.npy --rerank 2", "with `--embedder`"),
        # What does not reconstruct is no decoder of its own vectors
        (
            "decode {}/other {}/vectors.npy --rerank 2",
            "other learnt by the objective 'translation': it does not reconstruct",
        ),
        ("audit --decoder {}/other --texts {}/text.txt --output {}/a", "learnt by the objective 'translation'"),
        ("align {}/text.txt --embedder {}/model --to {}/other --output {}/a", "learnt by the objective 'translation'"),
        ("audit --decoder {}/model --texts {}/text.txt --vector_column v --output {}/a", "which is of `embeddings`"),
        ("reproduce compare-reconstructions {}/r --output {}/a --seed -1", "`seed` is -1; it must be 0 or more"),
    ],
)
def test_refused_in_one_line(made, monkeypatch, capsys, command, message):
    monkeypatch.setattr("hf_meanmax.commands.translate.CorpusLines", lambda corpus: corpus)
    if "--reference" in command:
        monkeypatch.setattr("hf_meanmax.commands.translate.check_translator", lambda folder: None)
    before = sorted(made.rglob("*"))
    code, errors = run(command, made, capsys)
    assert code not in (0, None)
    line = code if isinstance(code, str) else errors[errors.rindex("error: ") :].strip()
    assert message in line
    assert "\n" not in line
    shutil.rmtree(made / "cache", ignore_errors=True)
    shutil.rmtree(made / "run", ignore_errors=True)
    assert sorted(made.rglob("*")) == before


def test_a_tracker_that_is_not_installed_names_the_extra(made, monkeypatch, capsys):
    monkeypatch.setattr("hf_meanmax.training.run_settings.get_available_trackers", list)
    code, _ = run(f"{TRAIN} --report_to wandb", made, capsys)
    assert "wandb is not installed: pip install wandb" in str(code)
    assert not (made / "run").exists()


def test_many_unknown_words_are_counted(made, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("one two three cat\n" * 30)
    code, errors = run(f"{TRAIN} --vocab_size 5 --overwrite", tmp_path, capsys)
    assert code == 0, errors
    assert "warning: 60 of 80 words (75.0%) of the training texts are unknown" in errors
    code, errors = run(f"encode {made}/model {{}}/text.txt --output {{}}/v", tmp_path, capsys)
    assert code == 0
    assert "the model does not know 90 of 120 words (75.0%) of the first 30 lines" in errors
    (tmp_path / "labels.tsv").write_text("one two\tx\nthree four\ty\n" * 10)
    words = f"finetune --checkpoint {made}/model --train {{}}/labels.tsv --output_dir {{}}/tuned"
    assert "words of the training texts are unknown" in str(run(words, tmp_path, capsys)[0])


@pytest.mark.parametrize("name", ["e.txt", "e.csv", "none.csv", "e.jsonl", "list.json", "e.parquet", "e.csv.gz"])
def test_empty_texts_and_tables_are_alike(made, tmp_path, capsys, name):
    import gzip

    import pyarrow as pa
    import pyarrow.parquet

    content = {"e.csv": b"text\n", "list.json": b"[]", "e.csv.gz": gzip.compress(b"text\n\n")}
    (tmp_path / name).write_bytes(content.get(name, b""))
    if name == "e.parquet":
        pyarrow.parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / name)
    assert run(f"encode {made}/model {{}}/{name} --output {{}}/v", tmp_path, capsys)[0] == 0
    assert json.loads((tmp_path / "v" / "manifest.json").read_text())["rows"] == 0
    assert run(f"prepare {{}}/{name} --output {{}}/p.txt", tmp_path, capsys)[0] == (
        "hf-meanmax prepare: The corpus is empty."
    )
    refused = run(f"finetune --train {{}}/{name} --output_dir {{}}/tuned", tmp_path, capsys)[0]
    assert f"{name}: empty, expected " in str(refused)


def test_a_query_with_half_a_surrogate_pair_stops_no_other(made, capsys):
    with pytest.warns(UserWarning, match="Lone surrogates"):
        code = main(["search", "query", str(made / "index"), "the \ud800 cat", "a dog", "--k", "1"])
    assert code == 0
    assert "the \ufffd cat" in capsys.readouterr().out


def test_ctrl_c_in_the_preparation(made, tmp_path, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    shutil.copyfile(made / "text.txt", tmp_path / "text.txt")
    for module, name in ((vocabulary, "train_tokenizer"), (preparation, "build_token_store")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupt)
            code, errors = run(TRAIN, tmp_path, capsys)
        assert code == 130
        assert errors.strip().splitlines()[-1] == "hf-meanmax pretrain: interrupted; nothing that was finished is lost."
    assert run(TRAIN, tmp_path, capsys)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(encode_module, "embed_texts", interrupt)
        code, errors = run(f"encode {made}/model {{}}/text.txt --output {{}}/v", tmp_path, capsys)
    assert code == 130
    assert "Traceback" not in errors
    assert run(f"encode {made}/model {{}}/text.txt --output {{}}/v", tmp_path, capsys)[0] == 0


def test_an_index_that_is_rebuilt_meanwhile_is_read_whole(made, tmp_path, monkeypatch):
    """Of an index that was replaced while it was read, no part is of the old one and another of the new one."""
    faiss = pytest.importorskip("faiss")
    shutil.copytree(made / "index", tmp_path / "index")
    (tmp_path / "other.txt").write_text("a dog ran on\n" * 3)
    command = f"search index {made}/model {tmp_path}/other.txt --output {tmp_path}/index --overwrite"
    read_index, reads = faiss.read_index, []

    def rebuilding(*args):
        reads.append(args)
        if len(reads) == 1:
            main(command.split())
        return read_index(*args)

    monkeypatch.setattr(faiss, "read_index", rebuilding)
    index = SentenceIndex(tmp_path / "index")
    assert len(reads) == 2
    assert len(index) == len(index.texts) == 3
    # A reader of the old files goes on with them.
    monkeypatch.setattr(faiss, "read_index", read_index)
    vectors = index.embed(SentenceTransformer(str(made / "model"), device="cpu"), ["a dog ran on"])
    assert (
        main(
            command.replace("other.txt", "text.txt").replace(str(tmp_path / "text.txt"), str(made / "text.txt")).split()
        )
        == 0
    )
    assert index.nearest(vectors, k=1)[0][0].text == "a dog ran on"


def test_a_token_is_missed_before_a_card_is_written(made, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    before = sorted(path.name for path in (made / "model").iterdir())
    code, _ = run("push {}/model me/model", made, capsys)
    assert "There is no token for the Hub" in code
    assert sorted(path.name for path in (made / "model").iterdir()) == before
