"""One error family: every error a user can cause derives from `Wamdiff2Error` and says expected and actual."""


class Wamdiff2Error(Exception):
    """Base of all errors raised on purpose by this project."""


class CheckpointError(Wamdiff2Error):
    """A checkpoint folder that cannot be used: unknown kind, missing or surplus tensor, wrong shape, wrong id."""


class ConfigError(Wamdiff2Error):
    """A setting outside its range, or settings that contradict each other."""


class DataError(Wamdiff2Error):
    """A sample, image, map or bag that cannot be read as what it claims to be."""
