"""Encode text to sharded embeddings; the same command again goes on with a killed run.

python scripts/encode.py runs/docstrings/model corpus.txt --output embeddings
accelerate launch --num_processes 2 scripts/encode.py runs/docstrings/model "corpus/*.txt.xz" --output embeddings
"""

from hf_meanmax.inference.encode import main

if __name__ == "__main__":
    main()
