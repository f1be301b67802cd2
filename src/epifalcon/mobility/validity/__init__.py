"""The parts of the validity report; `epifalcon.mobility.statistics` is the door."""
