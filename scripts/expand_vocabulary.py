"""Let a trained model encode words beyond its vocabulary, by the vectors of a word2vec or GloVe file.

python scripts/expand_vocabulary.py runs/mine/model vectors.bin --output runs/mine/expanded --texts reviews.txt
"""

from hf_meanmax.checkpoint.expand import main

if __name__ == "__main__":
    main()
