"""Odd texts, damaged files, kills, full disks, two writers and readers of what is rebuilt: what happens, as a table.

    python benchmarks/faults.py
    python benchmarks/faults.py --texts 100000 --files 1000 --kills 100 --readers 200 --small_disk /mnt/2mb

Each row says how many cases there were and how many went as they should: vectors finite and the same alone and in a
batch; an error of one line, or none; after SIGKILLs at random moments of each verb the results of an uninterrupted run,
byte by byte; on a full disk a line that names path and cause, and the same command works when there is room. For full
disks `--small_disk` names an empty file system of some megabytes (`mount -t tmpfs -o size=2m tmpfs FOLDER`). The exit
code is 1 if a case went wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

# Processes are forked here, in which a thread of jemalloc, the allocator of pyarrow, would hold its locks for ever.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
# The generators of the seeded tests, in larger numbers.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kill_resume import read_losses

import test_fuzz as fuzz
from evaluation.senteval_folder import write_senteval_folder
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.__main__ import main as command_line
from hf_meanmax.files import read_json, replacing_file
from hf_meanmax.inference.encoder import encode_texts, load_encoder
from hf_meanmax.inference.search import SentenceIndex
from odd_texts import odd_texts
from tiny_model import make_model, make_tokenizer, random_lines

SIZES = "--embedding_size 16 --hidden_size 32 --intermediate_size 32 --num_attention_heads 2"
# OUT is what is written, and {} where the inputs are.
VERBS = {
    "pretrain": f"pretrain --corpus {{}}/text.txt --output_dir OUT --cache_dir OUT.cache {SIZES} --max_steps 60 "
    "--checkpoint_steps 3 --log_steps 1 --batch_tokens 256 --sample_sentences 0 --min_tokens 1 --word_drop 0.1",
    "finetune": "finetune --checkpoint {}/model --train {}/labels.tsv --output_dir OUT --epochs 4",
    "encode": "encode {}/model {}/text.txt --output OUT --shard_size 64 --pca 8",
    "index": "search index {}/model {}/text.txt --output OUT --shard_size 64",
    "evaluate": "evaluate {}/model --data {}/data --any_size --tasks MRPC,SICK-R,STS14 --controls majority "
    "--device cpu --output OUT --cache OUT.cache",
}
TOLERANCE = 2e-5
CLOCKS = ("second", "cached", "command", "date", "output", "created")


def write_inputs(folder: Path) -> None:
    save_checkpoint(make_model(), make_tokenizer(), folder / "model")
    lines = list(filter(None, random_lines(4000)))
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    draw = random.Random(0)
    (folder / "labels.tsv").write_text("".join(f"{line}\t{draw.choice('xy')}\n" for line in lines[:300]))
    write_senteval_folder(folder / "data" / "senteval", size=40)


class Command:
    """A verb in a process of its own, forked from this one, which has imported everything."""

    def __init__(self, words: str, log: Path) -> None:
        self.log = log
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            with open(log, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            try:
                code = command_line(words.split())
            except SystemExit as error:
                print(error.code if isinstance(error.code, str) else "", file=sys.stderr)
                code = error.code if isinstance(error.code, int) else 1
            except Exception:
                traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def wait(self, seconds: float = 600) -> int | None:
        """The exit code; None if it still runs after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.code is None and time.monotonic() < deadline:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.002)
        return self.code

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def said(self) -> str:
        """The error, or the last line; a progress bar that is closed may follow the error."""
        lines = self.log.read_text().strip().replace("\r", "\n").splitlines()
        errors = [line[line.index("error: ") :] for line in lines if "error: " in line]
        return (errors or lines or [""])[-1]


def words_of(verb: str, inputs: Path, output: Path) -> str:
    return VERBS[verb].replace("{}", str(inputs)).replace("OUT", str(output))


def result_of(verb: str, output: Path) -> object:
    """What must be the same after kills, without clocks and paths."""
    if verb == "pretrain":
        return read_losses(output), (output / "model" / "model.safetensors").read_bytes()
    if verb == "finetune":
        results = read_json(output / "results.json")
        return results["validation"], (output / "model" / "model.safetensors").read_bytes()
    if verb == "evaluate":
        return without_clocks(read_json(output / "results.json"))
    names = ("shard-*", "vectors.faiss", "texts.bin", "text_offsets.npy")
    return {path.name: path.read_bytes() for name in names for path in output.glob(name)}


def without_clocks(value: object) -> object:
    """A value of JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if not any(word in k for word in CLOCKS)}
    return [without_clocks(item) for item in value] if isinstance(value, list) else value


def remove(output: Path) -> None:
    for path in (output, output.with_name(f"{output.name}.cache"), output.with_name(f".{output.name}.embeddings")):
        shutil.rmtree(path, ignore_errors=True)


Row = tuple[str, int, int]


def texts(folder: Path, count: int, seed: int) -> Iterator[Row]:
    """Odd texts, in batches and some of them alone."""
    model = load_encoder(str(folder / "model"), device="cpu")
    warnings.filterwarnings("ignore", "Lone surrogates")
    finite = alone = same = 0
    draw, batch = random.Random(seed), []
    for number, text in enumerate(tqdm(odd_texts(count, seed), total=count, desc="texts"), 1):
        batch.append(text)
        if len(batch) == 2000 or number == count:
            vectors = encode_texts(model, batch, 64)
            finite += int(np.isfinite(vectors).all(axis=1).sum())
            for row in draw.sample(range(len(batch)), min(50, len(batch))):
                alone += 1
                same += bool(np.allclose(encode_texts(model, [batch[row]], 1)[0], vectors[row], atol=TOLERANCE))
            batch.clear()
    yield "odd texts: a finite vector", count, finite
    yield "odd texts: the same vector alone as in a batch", alone, same


def files(folder: Path, count: int, seed: int) -> Iterator[Row]:
    """Damaged files: read, or refused in a line."""
    whole, place = folder / "whole", folder / "place"
    whole.mkdir()
    fuzz.make_whole(whole)
    cases = right = 0
    for kind, path, content in tqdm(fuzz.damages(whole, seed, count), total=count, desc="files"):
        fuzz.copy_damaged(whole, place, kind, path, content)
        cases += 1
        try:
            text = fuzz.what_is_said(fuzz.READERS[kind], place)
            if len(text) < 2000:
                right += 1
            else:
                print(f"{path} of {content[:200]!r} is told in {len(text):,} letters: {text[:500]}", file=sys.stderr)
        except Exception as error:
            print(f"{path} of {content[:200]!r} ends in {error!r}", file=sys.stderr)
    yield "damaged files: read, or refused in a line", cases, right


def kills(folder: Path, count: int, seed: int) -> Iterator[Row]:
    """SIGKILL at random moments, then the same command to its end."""
    draw = random.Random(seed)
    for verb in VERBS:
        whole, output, log = folder / f"whole-{verb}", folder / f"killed-{verb}", folder / "log.txt"
        started = time.monotonic()
        if Command(words_of(verb, folder, whole), log).wait() != 0:
            raise SystemExit(f"{verb} failed: {log.read_text()[-2000:]}")
        seconds, expected = time.monotonic() - started, result_of(verb, whole)
        killed = cases = right = 0
        with tqdm(total=count, desc=f"kill {verb}") as bar:
            while killed < count:
                remove(output)
                # A few kills of one run, each of which gets further, or of the beginning.
                for _ in range(min(draw.randint(1, 5), count - killed)):
                    command = Command(words_of(verb, folder, output), log)
                    code = command.wait(draw.uniform(0, seconds))
                    if code:
                        break  # It fails again below.
                    if code is None:
                        command.kill()
                        killed += 1
                        bar.update()
                cases += 1
                if Command(words_of(verb, folder, output), log).wait() != 0:
                    print(f"{verb} did not go on: {log.read_text()[-500:]}", file=sys.stderr)
                elif result_of(verb, output) != expected:
                    print(f"{verb} has another result", file=sys.stderr)
                else:
                    right += 1
        yield f"{verb}, killed {killed} times in all: the result of an uninterrupted run", cases, right


def full_disks(folder: Path, disk: Path) -> Iterator[Row]:
    """The commands on a disk that is filled, then emptied."""
    for verb in VERBS:
        output, log, filler = disk / verb, folder / "log.txt", disk / "filler"
        cases = right = 0
        for room in (0, 16, 64, 256):
            remove(output)
            filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - room * 1024))
            before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
            command = Command(words_of(verb, folder, output), log)
            if command.wait() == 0:
                filler.unlink()
                continue
            cases += 1
            said = command.said()
            kept = all(path.is_file() and path.read_bytes() == content for path, content in before.items())
            filler.unlink()
            good = str(disk) in said and "No space left" in said and kept and ".partial" not in said
            again = Command(words_of(verb, folder, output), log).wait()
            if not good or again != 0:
                print(f"{verb} with {room} KiB: {said}; then {again}: {log.read_text()[-300:]}", file=sys.stderr)
            right += good and again == 0
        remove(output)
        yield f"full disk, {verb}: path and cause in a line, then the same command works", cases, right


def two_writers(folder: Path) -> Iterator[Row]:
    """A second command on the folder of the first."""
    cases = right = 0
    for verb in VERBS:
        output = folder / f"two-{verb}"
        place = output.with_name(f".{output.name}.lock") if verb == "index" else output / ".lock"
        first = Command(words_of(verb, folder, output), folder / "first.txt")
        while first.wait(0.001) is None and not (place.is_file() and place.stat().st_size):
            pass
        os.kill(first.pid, signal.SIGSTOP)
        second = Command(words_of(verb, folder, output), folder / "second.txt")
        code = second.wait()
        os.kill(first.pid, signal.SIGCONT)
        cases += 1
        good = code == 1 and f"is being written by process {first.pid} on" in second.said() and first.wait() == 0
        if good and verb == "pretrain":
            read_losses(output)
        if not good:
            print(f"{verb}: {code}, {second.said()}", file=sys.stderr)
        right += good
    yield "a second writer is refused, and the first goes on", cases, right


def readers(folder: Path, count: int) -> Iterator[Row]:
    """An index that is read while it is rebuilt of one text and another."""
    output, sizes = folder / "rebuilt", {}
    for name, number in (("a.txt", 50), ("b.txt", 80)):
        (folder / name).write_text("\n".join(filter(None, random_lines(number))) + "\n")
    for name in ("a.txt", "b.txt"):
        command = f"search index {folder}/model {folder}/{name} --output {output} --overwrite"
        Command(command, folder / "log.txt").wait()
        sizes[len(SentenceIndex(output))] = (folder / name).read_text().splitlines()
    right = 0
    writer, turn = Command(command, folder / "log.txt"), 0
    for _ in tqdm(range(count), desc="readers"):
        if writer.wait(0) is not None:
            turn += 1
            name = ("a.txt", "b.txt")[turn % 2]
            command = f"search index {folder}/model {folder}/{name} --output {output} --overwrite"
            writer = Command(command, folder / "log.txt")
        try:
            index = SentenceIndex(output)
            _, rows = index.search(np.ones((1, index.dimension), dtype=np.float32), k=3)
            right += [index.texts[row] for row in range(len(index))] == sizes[len(index)] and rows.max() < len(index)
        except (OSError, ValueError, KeyError) as error:
            print(f"a reader: {error!r}", file=sys.stderr)
    writer.wait()
    yield "an index that is rebuilt meanwhile: the old one or the new one", count, right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000, help="odd texts")
    parser.add_argument("--files", type=int, default=100, help="damaged files")
    parser.add_argument("--kills", type=int, default=10, help="SIGKILLs, over all verbs")
    parser.add_argument("--readers", type=int, default=50, help="openings of an index that is rebuilt")
    parser.add_argument("--small_disk", type=Path, help="an empty file system of some megabytes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file of the table")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_inputs(folder)
        # Those that fork first, before this process has threads.
        parts: list[Callable[[], Iterator[Row]]] = [
            lambda: kills(folder, -(-args.kills // len(VERBS)), args.seed),
            lambda: two_writers(folder),
            lambda: readers(folder, args.readers),
            lambda: texts(folder, args.texts, args.seed),
            lambda: files(folder, args.files, args.seed),
        ]
        if args.small_disk is not None:
            parts.insert(1, lambda: full_disks(folder, args.small_disk))
        for part in parts:
            for row in part():
                rows.append(row)
                print(f"{row[0]}: {row[2]} of {row[1]}", flush=True)
    lines = ["| case | number | as it should be |", "|---|---|---|", *(f"| {a} | {b:,} | {c:,} |" for a, b, c in rows)]
    table = "\n".join(lines)
    print(f"\n{table}")
    if args.output is not None:
        with replacing_file(args.output) as file:
            file.write(table + "\n")
    return int(any(right != cases for _, cases, right in rows))


if __name__ == "__main__":
    sys.exit(main())
