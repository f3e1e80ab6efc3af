"""Performance: rooflines, tiles, occupancy and profiles of one device."""
