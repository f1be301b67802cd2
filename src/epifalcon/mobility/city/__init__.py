"""The parts of the synthetic city; `epifalcon.mobility.synthetic` is the door."""
