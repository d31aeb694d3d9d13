"""Show which words an encoder with inner attention reads: on the terminal, as figures and as a page.

python scripts/inspect_attention.py runs/reviews/model "the food was awful but the staff were kind" --output attention
"""

from hf_meanmax.inspection.attention import main

if __name__ == "__main__":
    main()
