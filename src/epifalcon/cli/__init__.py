"""Words and screens: the command line. No arithmetic stands here."""
