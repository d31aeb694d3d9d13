"""Index the sentences of a corpus by their embeddings, and print the nearest sentences of a query.

python scripts/search.py index runs/books/model "books/*.txt.xz" --output books.index --index-type ivf-int8
python scripts/search.py query books.index "the old man sat by the fire" --k 5 --skip-identical
"""

from hf_meanmax.inference.search import main

if __name__ == "__main__":
    main()
