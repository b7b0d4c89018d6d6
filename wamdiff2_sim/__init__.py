"""The embedded driving world: roads, traffic, lights, renderer, expert and scores. Imports core, never ROS."""
