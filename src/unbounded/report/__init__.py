"""Figures, terminal bars and one self-contained HTML page."""
