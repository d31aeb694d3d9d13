"""Show what a decoder reads of the latent rows while it says a text: attention or gates, as figures and numbers.

python scripts/inspect_decoding.py runs/docstrings/model "Return the number of items." --output inspection
"""

from hf_meanmax.inspection.decoding import main

if __name__ == "__main__":
    main()
