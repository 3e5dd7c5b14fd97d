"""The weights of an agent as one flat vector: how versions are published and pulled, how gradients reach them."""
