"""Client of a Hub: reads repositories, publishes runs, retries after failures, resumes."""
