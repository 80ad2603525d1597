"""Lower precision in the graph: FP16 and BF16 with FP32 islands, INT8 by Q/DQ nodes, and the gates of both."""
