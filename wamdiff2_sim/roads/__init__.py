"""Roads: lane maps of procedural towns and of CARLA's towns, and routes on them."""
