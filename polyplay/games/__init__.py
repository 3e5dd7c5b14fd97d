"""Games that come with Polyplay: toys, board games, capture the flag, the lane game."""
