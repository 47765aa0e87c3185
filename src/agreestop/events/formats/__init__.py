"""Event recordings, and the file formats AEDAT 2.0 and AEDAT 3.1."""
