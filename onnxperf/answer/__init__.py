"""The answer: a frozen `Prediction`, its kernels, outline and notes."""
