"""One decoder written once against `takt.ops`, and the architectures it runs as data.

Maps metadata and tensor names of a checkpoint onto it. Knows no device.
"""
