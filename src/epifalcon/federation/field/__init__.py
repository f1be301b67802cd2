"""Falcon Field over sites: schedule, site code, denoising and privacy plan."""
