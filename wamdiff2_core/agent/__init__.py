"""The parts that a leaderboard agent is made of. No carla and no rclpy: the agent file hands them plain numbers."""
