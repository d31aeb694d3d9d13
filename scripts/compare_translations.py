"""One table of several translators: BLEU beside the scores that evaluate.py gave their representations.

python scripts/compare_translations.py a=runs/a/model b=runs/b/model --pairs test=test.en,test.de --output compared
"""

from hf_meanmax.reproduce.translation_table import main

if __name__ == "__main__":
    main()
