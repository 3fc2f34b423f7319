"""Wheels are built in a folder of their own: setuptools packs whatever an earlier build left in build/."""

from tempfile import TemporaryDirectory

from setuptools import setup

with TemporaryDirectory() as fresh:
    setup(options={"build": {"build_base": fresh}})
