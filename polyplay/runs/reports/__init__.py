"""Reports of a run: terminal, files, TensorBoard, W&B."""
