"""Tables, plots and HTML pages, from finished results."""
