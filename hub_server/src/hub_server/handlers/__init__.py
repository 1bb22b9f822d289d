"""Handlers of the HTTP API, by part of the Hub, and the route table."""
