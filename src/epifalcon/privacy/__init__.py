"""What may leave a device: clipped, noised, counted, with a receipt for each."""
