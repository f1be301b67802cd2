"""The synthetic city: land use, destinations, daily schedules, unobserved slots."""

from epifalcon.mobility.synthetic.city import CitySettings, build_city

__all__ = ["CitySettings", "build_city"]
