"""Skip-gram word vectors of a corpus, for all its frequent words: to start a model from, and to expand it with later.

python scripts/train_word_vectors.py 'my/*.txt' --output vectors.safetensors --size 300
"""

from hf_meanmax.commands.vectors import main

if __name__ == "__main__":
    main()
