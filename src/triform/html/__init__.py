"""HTML that pages and notebooks share: elements, the style sheet, and outputs for notebooks."""
