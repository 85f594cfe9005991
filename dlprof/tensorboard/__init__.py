"""Runs in a browser: one WSGI application, served by ``dlprof view`` and by TensorBoard.

Composes only. Only this package uses werkzeug and tensorboard; ``dlprof view`` needs the first of the two.
"""
