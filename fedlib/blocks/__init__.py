"""What several methods are built from; a block takes arguments and knows no method."""
