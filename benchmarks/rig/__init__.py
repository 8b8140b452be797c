"""What the benchmarks share: servers, load, and the CPU time of a process. No benchmark by itself."""
