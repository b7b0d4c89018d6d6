"""Making training and evaluation data from the driving world."""
