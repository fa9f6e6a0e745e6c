"""The rehearsal model: a local server that speaks the Messages API and plays the example agents."""
