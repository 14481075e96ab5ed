"""What a model attends to and why it predicted what it predicted: capture, figures, the HTML page."""
