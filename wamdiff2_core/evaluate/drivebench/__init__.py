"""DriveBench: questions on perception, prediction, planning and behaviour, official files in and out."""
