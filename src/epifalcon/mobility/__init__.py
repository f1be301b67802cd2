"""Where people were: clock, regions, traces, and what is derived from them."""
