"""Who may come in: users and passwords, other sites' pages, connections and their patience."""
