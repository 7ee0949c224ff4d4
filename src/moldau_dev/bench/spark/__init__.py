"""`python -m moldau_dev.bench spark`: broker and Spark together, beside Spark without a broker."""
