"""Train and evaluate a list of systems, and put them into one table.

python scripts/reproduce.py scripts/books.yaml --data data --output results/books
"""

from hf_meanmax.reproduce.run import main

if __name__ == "__main__":
    main()
