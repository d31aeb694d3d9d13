"""SentEval and the intrinsic tasks for any sentence encoder, beside its controls.

python scripts/evaluate.py runs/docstrings/model --data data
python scripts/evaluate.py sentence-transformers/all-MiniLM-L6-v2 --tasks senteval --output results/minilm
"""

from hf_meanmax.commands.evaluate import main

if __name__ == "__main__":
    main()
