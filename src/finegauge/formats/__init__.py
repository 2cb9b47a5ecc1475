"""Training frameworks' own files, read as a Run and written from one."""
