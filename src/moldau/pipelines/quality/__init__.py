"""Data quality: rules for the values of topics, jobs that check them, and the replay of dead letters."""
