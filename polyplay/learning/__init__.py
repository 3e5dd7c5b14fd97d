"""The learning loop: batches, losses, updates; and the replica, which acts and learns."""
