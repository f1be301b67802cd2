"""Private releases: clipping, noise, accounting, and a receipt for each release."""
