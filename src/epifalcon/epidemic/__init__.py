"""Who was infected, when and where, and who was tested."""
