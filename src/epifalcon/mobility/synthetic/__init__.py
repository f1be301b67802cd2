"""The synthetic city: layout of the land, destinations, people's days, gaps."""

from epifalcon.mobility.synthetic.city import build_city
from epifalcon.mobility.synthetic.settings import CitySettings

__all__ = ["CitySettings", "build_city"]
