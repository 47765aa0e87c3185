"""Examples as scripts: how long they are."""


def lines_of_code(code: str) -> int:
    """Lines of a script without its docstring, the text between its parts, and empty lines."""
    lines = code.split('"""', 2)[2].splitlines()
    return len([line for line in lines if line and not line.startswith("#")])
