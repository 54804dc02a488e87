"""Writes the pages of docs/reference that are generated from the code: `python -m scripts.reference`."""

from pathlib import Path

from scripts.reference.pages import generated_pages


def main() -> None:
    """Write every page."""
    for page, text in generated_pages().items():
        Path(page).write_text(text, encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main()
