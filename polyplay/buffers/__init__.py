"""What lies between acting and learning: queues of rollouts and of drawn batches, and the replay."""
