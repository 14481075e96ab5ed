"""Draw architectures from the models themselves: layout, SVG, and one file for each type of drawing."""
