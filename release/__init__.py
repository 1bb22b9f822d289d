"""Releases: a recipe to a published artefact in one command. The one package that may call every
stage.
"""
