"""The names of what stands in a method's folder, free of torch for mere readers."""

FEATURES = "features"
REGION = "region"
"""The fitted region model, inside ``FEATURES``."""
MODEL = "model"
WEIGHTS = "model.safetensors"
PREDICTION = "prediction"
LEDGER = "ledger.jsonl"
