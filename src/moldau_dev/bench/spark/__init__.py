"""`python -m moldau_dev.bench spark`: broker and Spark together, compared with Spark without a broker."""
