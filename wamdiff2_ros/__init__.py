"""ROS 2 nodes: messages in, messages out; the thinking is in wamdiff2_core."""
