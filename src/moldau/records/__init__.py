"""Record batches: header, varints, CRC, compression."""
