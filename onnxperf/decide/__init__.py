"""What to do about a prediction: what would be faster, whether a budget holds, what two models differ in."""
