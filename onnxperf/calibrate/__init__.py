"""What a device is beyond its datasheet: corrections fitted to measurements on it, and the file that holds them."""
