"""The package below all others: file formats, the Hub's client, messages, errors.

It imports no other package of the project.
"""
