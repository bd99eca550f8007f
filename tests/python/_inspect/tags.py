"""A parser of HTML that fails where tags do not nest."""

import html.parser


class Tags(html.parser.HTMLParser):
    """Fails where tags do not nest."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
