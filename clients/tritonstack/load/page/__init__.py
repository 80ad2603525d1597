"""The parts of the HTML report: markup, look, plots."""
