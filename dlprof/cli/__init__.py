"""The command line: one module per command; errors become exit statuses in ``main`` alone."""
