"""How good a prediction is, how sure that is, and what an attacker could learn."""
