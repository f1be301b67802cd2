"""One experiment: settings, simulation, training, the stored run and its report."""
