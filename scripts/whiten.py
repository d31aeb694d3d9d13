"""Write a model whose vectors are whitened, for similarity and search.

python scripts/whiten.py runs/mine/model my.txt --output runs/mine/whitened --dimension 256
"""

from hf_meanmax.inference.whitening import main

if __name__ == "__main__":
    main()
