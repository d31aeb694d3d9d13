"""One Markdown table of what several systems said again, from the output folders of reconstruct.py.

python scripts/compare_reconstructions.py runs/gated/scores runs/rae/scores --names gated RAE --output table.md
"""

from hf_meanmax.reproduce.reconstruction_table import main

if __name__ == "__main__":
    main()
