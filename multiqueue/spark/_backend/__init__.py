"""All that is asked of Spark, classic or Connect, and the causes of its failures. Knows no other folder."""
