"""Translate texts, one line a line; with the reference translations, their BLEU.

python scripts/translate.py runs/en-de/model test.en --output test.out.de --reference test.de
"""

from hf_meanmax.inference.translate import main

if __name__ == "__main__":
    main()
