"""Why tokens were late: each late gap's time split over causes. Measures and explains, no more."""
