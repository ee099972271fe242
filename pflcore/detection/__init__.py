"""Object detection by default boxes: boxes, loss, detections, average precision."""
