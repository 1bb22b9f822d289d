"""Every form that is written to disk or to a Hub: columns, recipes, run directories, shards,
results, licences.
"""
