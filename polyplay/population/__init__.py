"""Which of an agent's weights play: matches between them, and who wins them."""
