"""What an autoscaler does with a signal, second by second: the HPA's law, the counters Triton exports, and pods."""
