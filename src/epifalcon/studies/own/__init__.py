"""Studies of our own, one file each."""
