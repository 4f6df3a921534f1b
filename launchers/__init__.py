"""Resources only: who runs where, with which command. Nothing here knows of training."""
