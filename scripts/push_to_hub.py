"""Push a checkpoint folder with its model card to the Hub, or its demo as a Space.

python scripts/push_to_hub.py runs/docstrings/model USER/NAME --private
python scripts/push_to_hub.py runs/docstrings/model USER/NAME --card_only model_cards/NAME.md
"""

from hf_meanmax.commands.push import main

if __name__ == "__main__":
    main()
