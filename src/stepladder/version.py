"""The version, in one place that needs nothing imported."""

VERSION = "0.1.0"
