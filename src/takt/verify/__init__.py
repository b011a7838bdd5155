"""A plan against the service that runs: P99s as predicted and as measured. Serves nothing."""
