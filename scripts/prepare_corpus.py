"""Cut the long texts of a corpus to a range of lengths, segment Chinese; writes one text a line.

python scripts/prepare_corpus.py reviews.txt --output reviews.cut.txt.xz --min-length 10 --max-length 60
python scripts/prepare_corpus.py "news-zh/*.txt.xz" --output news-zh.txt.xz --segment jieba --max-length 60
"""

from hf_meanmax.commands.prepare import main

if __name__ == "__main__":
    main()
