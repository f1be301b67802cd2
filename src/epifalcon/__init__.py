"""epifalcon: who is probably infected, while traces stay on people's own devices."""
