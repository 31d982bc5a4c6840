"""Two emulated CUDA devices for a torch that was built without CUDA: docs/emulated_cuda.md."""
