"""The contract: every form that is written to disk or to the Hub. Imports nothing of ours."""
