"""What an honest but curious server, or a dishonest one, finds out of messages."""
