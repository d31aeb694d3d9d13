"""Encode text to sharded embeddings: `hf-meanmax encode`, for `accelerate launch`.

python scripts/encode.py runs/docstrings/model corpus.txt --output embeddings
accelerate launch --multi_gpu --num_processes 2 scripts/encode.py runs/docstrings/model corpus.txt --output embeddings
"""

from hf_meanmax.commands.encode import main

if __name__ == "__main__":
    main()
