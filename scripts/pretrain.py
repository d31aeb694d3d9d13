"""Trains a sentence autoencoder from raw text.

accelerate launch scripts/pretrain.py
accelerate launch scripts/pretrain.py mean-max-aae-small --corpus 'books/*.txt' --output_dir runs/books
"""

import sys

from hf_meanmax.commands.pretrain import main

if __name__ == "__main__":
    sys.exit(main())
