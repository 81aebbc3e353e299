"""What a method is made of: trees, nets, losses, prototypes, messages, training."""
