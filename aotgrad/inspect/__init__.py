"""For people: looking at what is compiled, outside of the pipeline."""
