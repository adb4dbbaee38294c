"""Takes an HTML page apart."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page holds.

    ids: of its elements. links: where its <a> lead. loads: (tag, address) of what it would load. handlers: attributes
    that are scripts. tags: all of them. text: what is read; a script's and a style's is not.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[tuple[str, str]] = []
        self.handlers: list[str] = []
        self.tags: list[str] = []
        self._texts: list[str] = []
        self.feed(source)
        self.loads += [("css", found) for found in re.findall(r"@import\s*\S+|url\((?!#)[^)]*", source)]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in {"src", "srcset", "href", "xlink:href", "action", "data", "poster"}:
                self.loads.append((tag, value or ""))
            elif name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["script"], ["style"]):
            self._texts.append(data)
