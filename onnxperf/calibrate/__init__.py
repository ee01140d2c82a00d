"""Constants from measurements. `calibrate.constants` derives the shipped ones."""
