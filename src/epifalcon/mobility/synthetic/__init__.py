"""The synthetic city: land, destinations, people's days, gaps."""

from epifalcon.mobility.synthetic.city import CitySettings, build_city

__all__ = ["CitySettings", "build_city"]
