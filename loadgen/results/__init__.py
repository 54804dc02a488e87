"""Result folders: written with everything that a run has measured, and read again."""
