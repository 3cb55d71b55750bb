"""What a request may not do and may hold, and answers as text: for all other folders of the room."""
