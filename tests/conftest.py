import os

# Before torch is loaded: its idle threads would otherwise spin and take the cores
# from the other test process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
