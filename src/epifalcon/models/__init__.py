"""What is learned: the model of regions, and the model of people."""
