"""File formats of event recordings: AEDAT 2.0, AEDAT 3.1 and N-MNIST."""
