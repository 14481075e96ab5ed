"""The version of Headway, used by the build, the command line, score signatures and the service."""

__version__ = "0.1.0"
