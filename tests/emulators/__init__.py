"""CPU emulators of the fused attention entry points, strict about signatures, layouts and edge conventions."""
