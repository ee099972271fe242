"""What happens to files: a bit turns over, the end is lost, nothing is left. A file that is a link becomes its own."""


def flip(path):
    """Turn a bit in the middle over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    _replace(path, content)


def cut(path):
    content = path.read_bytes()
    _replace(path, content[: len(content) // 2])


def shorten(path):
    """Cut the last bytes off."""
    _replace(path, path.read_bytes()[:-7])


def empty(path):
    _replace(path, b"")


def _replace(path, content):
    path.unlink()  # DVC may have made a link of it
    path.write_bytes(content)
