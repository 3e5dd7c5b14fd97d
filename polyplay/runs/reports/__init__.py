"""What a run tells: terminal, files, TensorBoard, dashboards."""
