"""The paper's tables and figures, one file per study."""
