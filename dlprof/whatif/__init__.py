"""What would another setting, or a cause less, gain? Simulation and forecasts; no torch."""
