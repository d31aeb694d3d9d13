"""Fine-tune an encoder on labels, or train a classifier from random weights.

accelerate launch scripts/finetune.py --checkpoint runs/mine/model --train train.tsv --test test.tsv
"""

import sys

from hf_meanmax.commands.finetune import main

if __name__ == "__main__":
    sys.exit(main())
