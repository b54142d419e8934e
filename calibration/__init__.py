"""Where cost models come from: measured kernel times, taken here or elsewhere."""
