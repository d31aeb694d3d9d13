"""Decode embeddings back to text, one line a row.

python scripts/decode.py runs/docstrings/model embeddings --output decoded.txt --num-beams 4
"""

from hf_meanmax.inference.decode import main

if __name__ == "__main__":
    main()
