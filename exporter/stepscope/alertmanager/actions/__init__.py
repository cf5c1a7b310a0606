"""Acts on alerts: asks the processes of a run to stop when an allow-listed rule has fired."""
