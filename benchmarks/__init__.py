"""What the proxy costs, measured. `make bench` runs each module here; `rig` is what they share."""
