"""A stand-in for the CARLA server under the genuine Bench2Drive leaderboard: our world, CARLA's maps, their scorer."""
