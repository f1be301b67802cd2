"""The paper's tables and figures, one file a study."""
