"""What only walkthroughs and lessons use."""
