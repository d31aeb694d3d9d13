"""Write a checkpoint's encoder as ONNX, also with int8 weights, and check both against torch.

python scripts/export_onnx.py runs/mine/model
"""

from hf_meanmax.inference.onnx_export import main

if __name__ == "__main__":
    main()
