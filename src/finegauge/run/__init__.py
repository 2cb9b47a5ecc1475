"""The question: which model is trained how, on which data, on which machines."""
