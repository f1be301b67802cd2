"""Estimators of infection risk: Falcon, the baselines and the ceilings."""
