"""Bytes to types and back: span files, saved runs, ``report.json``, Chrome traces."""
