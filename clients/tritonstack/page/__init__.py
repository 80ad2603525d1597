"""What the HTML pages of all reports are made of: escaped elements, one look, round ticks."""
