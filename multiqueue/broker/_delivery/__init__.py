"""How messages get into an application's hands: targets, subscriptions, and the threads that run them."""
