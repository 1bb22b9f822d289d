"""HTTP: connections and request bodies with limits and timeouts; one call as handlers see it."""
