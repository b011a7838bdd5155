"""Words every package uses: plain data with no policy, no I/O and no tensors beyond numpy."""
