"""Scores how well held-out sentences come back from their embeddings: greedy BLEU, exact matches, accuracy.

python scripts/reconstruct.py runs/docstrings/model held-out.txt --limit 2000
"""

from hf_meanmax.evaluation.reconstruction import main

if __name__ == "__main__":
    main()
