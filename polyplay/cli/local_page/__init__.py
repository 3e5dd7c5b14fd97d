"""A page that a verb serves to this machine only: its port, who may ask, what all pages share."""
