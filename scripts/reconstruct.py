"""Scores how well held-out sentences come back from their embeddings: BLEU, chrF, ROUGE, exact matches.

python scripts/reconstruct.py runs/docstrings/model held-out.txt --limit 2000 --output reconstructions
"""

from hf_meanmax.evaluation.reconstruction import main

if __name__ == "__main__":
    main()
