"""Translating files with a trained checkpoint."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch

from hf_meanmax import CompoundAttentionForTranslation
from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.commands import translate as translate_command
from hf_meanmax.commands.translate import main
from hf_meanmax.inference.reconstruct import reconstruct
from hf_meanmax.tokenization import train_tokenizer
from tiny_model import make_model, make_tokenizer

LINES = ["the cat sat", "", "a dog ran on the mat the cat sat", "the red dog ran"]


@pytest.fixture(params=["joint", "two"])
def folder(request, tmp_path):
    target = train_tokenizer(["der Hund und die Katze sitzen auf der Matte"], show_progress=False)
    if request.param == "joint":
        model = make_model(full_class=CompoundAttentionForTranslation, architecture="attn")
        with torch.no_grad():
            model.lm_head.bias[:4] = -5.0  # words, and not the special tokens
        return save_checkpoint(model, make_tokenizer(), tmp_path / "model")
    sizes = {"vocab_size": len(target), "input_vocab_size": len(make_tokenizer()), "separate_vocabularies": True}
    model = make_model(full_class=CompoundAttentionForTranslation, latent_size=5, **sizes)
    return save_checkpoint(model, make_tokenizer(), tmp_path / "model", target_tokenizer=target)


def test_lines_stay_lines(folder, tmp_path, capsys):
    """Each line is what the model says of it alone; the scores are those of the file."""
    source, output, reference = (tmp_path / name for name in ("source.txt", "out.txt", "reference.txt"))
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    main([str(folder), str(source), "--output", str(output)])
    said = output.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(said) == len(LINES)
    assert said[1] == ""
    model, tokenizer = load_checkpoint(folder)
    for line, translation in zip(LINES, said, strict=True):
        if line and not model.config.separate_vocabularies:
            ids = model.generate(**tokenizer([line], return_tensors="pt"))[0]
            assert translation == tokenizer.decode(ids, skip_special_tokens=True)
    reference.write_text("\n".join(said) + "\n", encoding="utf-8")
    capsys.readouterr()
    main([str(folder), str(source), "--reference", str(reference)])
    told = capsys.readouterr()
    assert told.out.split("\n")[:-1] == said
    assert "chrF 100.00" in told.err
    assert "tok:13a" in told.err
    table = tmp_path / "table.jsonl"
    table.write_text("".join(json.dumps({"sentence": line}) + "\n" for line in LINES if line))
    main([str(folder), str(table), "--reference", str(table), "--text_column", "sentence"])
    assert "chrF" in capsys.readouterr().err


def test_a_killed_translation_goes_on(folder, tmp_path, monkeypatch, capsys):
    source, output, whole = (tmp_path / name for name in ("source.txt", "out.txt", "whole.txt"))
    source.write_text("\n".join(LINES * 3) + "\n", encoding="utf-8")
    main([str(folder), str(source), "--output", str(whole)])
    translate, starts = translate_command.translate_corpus, []

    def killed(*args, first_line, **options):
        starts.append(first_line)
        yield from islice(translate(*args, first_line=first_line, **options), 5)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(translate_command, "translate_corpus", killed)
        for _ in range(2):
            with pytest.raises((KeyboardInterrupt, SystemExit)):
                main([str(folder), str(source), "--output", str(output)])
    assert starts == [0, 5]
    assert not output.exists()
    capsys.readouterr()
    main([str(folder), str(source), "--output", str(output), "--reference", str(whole)])
    assert output.read_text(encoding="utf-8") == whole.read_text(encoding="utf-8")
    assert "chrF 100.00" in capsys.readouterr().err


def test_special_tokens_are_those_of_the_target(monkeypatch):
    """One that the source alone has is a word of the target."""
    source, target = make_tokenizer(), train_tokenizer(["der Hund und die Katze"], show_progress=False)
    source.add_special_tokens({"additional_special_tokens": [source.convert_ids_to_tokens(5)]})
    model = make_model(full_class=CompoundAttentionForTranslation, architecture="attn")
    monkeypatch.setattr(model, "generate", lambda **_: torch.tensor([[5, target.eos_token_id]]))
    assert reconstruct(model, source, ["the cat sat"], target_tokenizer=target) == [[5]]
    assert reconstruct(model, source, ["the cat sat"]) == [[]]


def test_errors_in_one_line(folder, tmp_path):
    with pytest.raises(SystemExit, match=r"^hf-meanmax translate: .*nothing\.txt"):
        main([str(folder), str(tmp_path / "nothing.txt")])
    (tmp_path / "source.txt").write_text("the cat sat\n")
    (tmp_path / "reference.txt").write_text("one\ntwo\n")
    with pytest.raises(SystemExit, match=r"^hf-meanmax translate: 1 text and 2 references"):
        main([str(folder), str(tmp_path / "source.txt"), "--reference", str(tmp_path / "reference.txt")])
    with pytest.raises(SystemExit, match=r"^hf-meanmax translate: `tokenize` is 'zh', which is for the BLEU of"):
        main([str(folder), str(tmp_path / "source.txt"), "--tokenize", "zh"])


def test_an_autoencoder_without_a_record_is_no_translator(tmp_path):
    save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    (tmp_path / "source.txt").write_text("the cat sat\n")
    with pytest.raises(SystemExit, match="is no translator: it was trained with the objective 'reconstruction'"):
        main([str(tmp_path / "model"), str(tmp_path / "source.txt")])


def test_files_one_after_the_other_have_no_line_between(folder, tmp_path):
    for name, lines in (("a", LINES[:2]), ("b", LINES[2:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "whole.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    said = []
    for source in (tmp_path / "whole.txt", tmp_path / "[ab].txt"):
        main([str(folder), str(source), "--output", str(tmp_path / "said"), "--reference", str(tmp_path / "[ab].txt")])
        said.append((tmp_path / "said").read_text(encoding="utf-8"))
    assert said[0] == said[1]


def test_an_empty_file_is_told(folder, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("")
    main([str(folder), str(tmp_path / "empty.txt")])
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[-1]) == ("", f"warning: there is no line in {tmp_path / 'empty.txt'}")
