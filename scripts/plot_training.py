"""Draw what training runs logged, side by side: `--metrics loss validation_bleu teacher_loss ...`.

python scripts/plot_training.py runs/a runs/b --metrics loss validation_loss --output training.png
"""

from hf_meanmax.plots.training import main

if __name__ == "__main__":
    main()
