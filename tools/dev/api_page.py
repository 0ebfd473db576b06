"""docs/api-reference.md from the C headers: api_page.py > docs/api-reference.md."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ("types.h", "cenote.h", "pool.h")
TOP = """# The C interface

Made from the headers in `include/cenote` by `tools/dev/api_page.py`, which a test holds it to; change it there. How to link,
and a page of each journey: [api.md](api.md).
"""


def prose(comment):
    """A comment without its marks; lines that are indented stay as they are, as code does."""
    lines = comment.strip()
    lines = re.sub(r"^/\*\*?|\*/$", "", lines).split("\n")
    lines = [re.sub(r"^ \* ?", "", line).rstrip() for line in lines]
    out, code = [], False
    for line in lines:
        indented = line.startswith("  ") and not line.strip().startswith("-") and bool(line.strip())
        if indented != code and line.strip():
            out.append("```c" if indented else "```")
            code = indented
        out.append(line.strip() if not code else line[2:])
    return "\n".join(out + (["```"] if code else [])).strip()


def pieces(text):
    """(comment, declaration) pairs in order; a comment without a declaration has ""."""
    text = text[text.index("/*"):]
    token = re.compile(r"(?P<comment>/\*.*?\*/)|(?P<skip>^#(?!define CENOTE_(?:NO_|SIGNALS))[^\n]*(?:\\\n[^\n]*)*\n|^(?:extern \"C\" \{|\})\n)|"
                       r"(?P<code>^(?:#define[^\n]*|CENOTE_API[^;]*;|typedef [^;{]*;|typedef [^;{]*\{(?:/\*.*?\*/|[^}])*\}[^;]*;))",
                       re.S | re.M)
    comment = None
    for match in token.finditer(text):
        if match.group("comment"):
            if comment is not None:
                yield comment, ""
            comment = match.group("comment")
        elif match.group("code"):
            yield comment, match.group("code")
            comment = None
    if comment is not None:
        yield comment, ""


def page():
    out = [TOP]
    for header in HEADERS:
        out.append(f"## cenote/{header}\n")
        for comment, code in pieces((ROOT / "include/cenote" / header).read_text()):
            section = re.fullmatch(r"/\* ---- (.*) ---- \*/", comment or "")
            if section:
                out.append(f"### {section.group(1)[0].upper()}{section.group(1)[1:]}\n")
                continue
            if comment:
                out.append(prose(comment) + "\n")
            if code:
                out.append("```c\n" + code.replace("CENOTE_API ", "") + "\n```\n")
    return "\n".join(out)


if __name__ == "__main__":
    print(page(), end="")
