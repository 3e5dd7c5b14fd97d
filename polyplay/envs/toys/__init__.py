"""Small games in which a policy learns within seconds."""
